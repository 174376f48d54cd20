"""Sources of images: a folder, arrays in npz files, shards, or a data set of torchvision; each is read as a table.

`describe` and `write_arrays` serve the scripts of public corpora (`datasets/NAME/prepare.py`).
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cpc.data.images.arrays import read_image_arrays
from cpc.data.images.pack import read_sharded_images
from cpc.data.images.table import ImageTable, read_image_folder
from cpc.data.images.torchvision import read_torchvision
from cpc.data.store.atomic import write_atomically
from cpc.data.store.contents import say_contents
from cpc.data.store.shards import is_sharded
from cpc.data.store.splits import SPLIT_OF, SPLITS, draw_splits, split_called

DEFAULT_VALID_SHARE = 0.05


def read_image_source(
    source: str | Path,
    *,
    valid_share: float = DEFAULT_VALID_SHARE,
    valid_from: str | None = None,
    seed: int = 0,
    cache_dir: str | Path | None = None,
    cache_gb: float = 50.0,
) -> ImageTable:
    """Read names, splits and labels of a source of images, but not the pixels.

    Args:
        source: one of

            - a folder of image files: `SPLIT/CLASS/**`, `CLASS/**` or images without folders (see `read_image_folder`);
            - an npz file, or a folder with train.npz, valid.npz, test.npz, unlabelled.npz or some of them (see
              `read_image_arrays`). An array `sequence` marks images that belong together, such as overlapping crops.
              Such images share a sequence id: they come in different batches, are held out together, and are
              resampled together by intervals;
            - `NAME:ROOT`, one of torchvision's data sets: cifar10, cifar100, imagenet, mnist, stl10 (see
              `read_torchvision`);
            - a folder that `cpc data shard` wrote, or its URL.
        valid_share: if the source has no split `valid`, this share of another split becomes `valid`; 0: no images
            become `valid`. A hash of seed and name decides, so adding images does not change the split of other images
            (see `draw_splits`). Images of one sequence stay together.
        valid_from: the split from which `valid` is drawn. Pass the split to train on: held-out images then are of the
            same kind, and other splits keep all labels. None: `train`, or `unlabelled` if there is no `train`.
        seed: seed of the hash.
        cache_dir: folder for the shards of a URL; None: `$XDG_CACHE_HOME/cpc/shards`.
        cache_gb: largest size of these shards on disk, in 1e9 bytes.

    Raises:
        ConnectionError: if a URL cannot be read.
        ValueError: if the source is missing, empty, damaged or of unknown layout, or `valid_share` leaves a split
            empty. The message names the file or the option.
    """
    table = read_sharded_images(source, cache_dir, cache_gb) if is_sharded(source) else _read(source)
    if "valid" not in table.splits:
        table = replace(table, splits=_draw_valid(table, valid_share, valid_from, seed))
    say_contents(source, "images", table.splits, classes=table.classes)
    return table


def describe(table: ImageTable, published: dict[str, int] | None = None) -> str:
    """Return a table of each split's images and labelled images, with the `published` number if it differs."""
    lines = [f"{len(table)} images in {table.origin.root}", f"{'split':12}{'images':>8}{'labelled':>10}"]
    splits = np.array(table.splits)
    for split in dict.fromkeys([*(published or {}), *table.splits]):
        is_here = splits == split
        line = f"{split:12}{is_here.sum():8}{(table.labels[is_here] >= 0).sum():10}"
        if published and published.get(split) != is_here.sum():
            line += f"   (published: {published.get(split, 0)})"
        lines.append(line)
    return "\n".join([*lines, f"{len(table.classes)} classes: {', '.join(table.classes)}"])


def write_arrays(out: Path, splits: dict[str, dict[str, Any]]) -> ImageTable:
    """Write the arrays of each split to `SPLIT.npz`, and read them as a source."""
    out.mkdir(parents=True, exist_ok=True)
    for split, arrays in splits.items():
        with write_atomically(out / f"{split}.npz") as new, new.open("wb") as stream:
            np.savez(stream, **arrays)
    return read_image_source(out, valid_share=0.0)


def _read(source: str | Path) -> ImageTable:
    path = Path(source).expanduser()
    if path.is_dir():
        arrays = [array for array in sorted(path.glob("*.npz")) if split_called(array.stem)]
        if not arrays:
            return read_image_folder(path)
        return read_image_arrays(
            sorted(arrays, key=lambda array: SPLITS.index(SPLIT_OF[array.stem.lower()])), are_splits=True
        )
    if path.is_file():
        if path.suffix.lower() != ".npz":
            raise ValueError(f"{path} is not an npz file; name an npz file, or the folder that holds the images")
        return read_image_arrays([path], are_splits=False)
    match = re.fullmatch(r"(\w[\w-]+):(.+)", str(source))  # at least two characters: `C:` is a drive
    if match is None:
        raise ValueError(
            f"there is no folder or npz file {path}; name data sets of torchvision as NAME:ROOT, such as stl10:{path}"
        )
    return read_torchvision(match[1], Path(match[2]).expanduser())


def _draw_valid(table: ImageTable, valid_share: float, valid_from: str | None, seed: int) -> list[str]:
    """Return the splits after drawing a share of one split as `valid`. A source of only test images is not changed."""
    drawn_from = valid_from or ("train" if "train" in table.splits else "unlabelled")
    rows = np.flatnonzero([split == drawn_from for split in table.splits])
    _, first, sequence = np.unique(table.sequences[rows], return_index=True, return_inverse=True)
    units = [
        table.names[row] for row in rows[first]
    ]  # first image of each sequence, so that two sequences are held out
    drawn = draw_splits(units, valid_share=valid_share, test_share=0.0, seed=seed) if units else []
    splits = list(table.splits)
    for row, index in zip(rows.tolist(), sequence.tolist(), strict=True):
        splits[row] = "valid" if drawn[index] == "valid" else splits[row]
    return splits
