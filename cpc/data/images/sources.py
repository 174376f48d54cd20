"""Sources of images: a folder, arrays in npz files, shards, or a data set of torchvision; each is read as a table.

`describe` and `write_arrays` serve the scripts of public corpora (`datasets/NAME/prepare.py`).
"""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cpc.config.argument_rules import Choices
from cpc.data.images.arrays import ImageArray, Images, read_image_arrays, tabulate_arrays
from cpc.data.images.pack import read_sharded_images
from cpc.data.images.table import ImageTable, find_images, read_image_folder, tabulate
from cpc.data.store.atomic import write_atomically
from cpc.data.store.contents import SPLIT_OF, SPLITS, describe_splits, draw_splits, say_contents, split_called
from cpc.data.store.folders import file_version
from cpc.data.store.shards import is_sharded

DEFAULT_VALID_SHARE = 0.05
_STL10_SHAPE = (3, 96, 96)  # channels, columns, rows


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
              `read_image_arrays`);
            - `NAME:ROOT`, a data set of torchvision: cifar10, cifar100, imagenet, mnist, stl10 (see
              `read_torchvision`);
            - a folder that `cpc data shard` wrote, or its URL.
        valid_share: share of another split that becomes `valid` if the source has none. A hash of seed and name
            decides (see `draw_splits`). Images of one sequence stay together.
        valid_from: the split from which `valid` is drawn, best the split to train on; None: `train`, or `unlabelled`
            if there is no `train`.
        seed: seed of the hash.
        cache_dir: folder for the shards of a URL; None: `$XDG_CACHE_HOME/cpc/shards`.
        cache_gb: largest size of these shards on disk, in 1e9 bytes.
    """
    table = read_sharded_images(source, cache_dir, cache_gb) if is_sharded(source) else _read(source)
    if "valid" not in table.splits:
        table = replace(table, splits=_draw_valid(table, valid_share, valid_from, seed))
    say_contents(source, "images", table.splits, classes=table.classes)
    return table


def describe(table: ImageTable, published: dict[str, int] | None = None) -> str:
    """Return a table of each split's images and labelled images, with the `published` number if it differs."""
    title = f"{len(table)} images in {table.origin.root}"
    lines = describe_splits(title, table.splits, published, labelled=table.labels >= 0)
    return f"{lines}\n{len(table.classes)} classes: {', '.join(table.classes)}"


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
        raise ValueError(f"there is no folder or npz file {path}; data sets of torchvision are named NAME:ROOT")
    return read_torchvision(match[1], Path(match[2]).expanduser())


def _draw_valid(table: ImageTable, valid_share: float, valid_from: str | None, seed: int) -> list[str]:
    """Return the splits after drawing a share of one split as `valid`; a source of only test images is not changed."""
    drawn_from = valid_from or ("train" if "train" in table.splits else "unlabelled")
    rows = np.flatnonzero([split == drawn_from for split in table.splits])
    _, first, sequence = np.unique(table.sequences[rows], return_index=True, return_inverse=True)
    # the first image of each sequence, so that two sequences are held out
    units = [table.names[row] for row in rows[first]]
    drawn = draw_splits(units, valid_share=valid_share, test_share=0.0, seed=seed) if units else []
    splits = list(table.splits)
    for row, index in zip(rows.tolist(), sequence.tolist(), strict=True):
        splits[row] = "valid" if drawn[index] == "valid" else splits[row]
    return splits


def read_torchvision(name: str, root: Path) -> ImageTable:
    """Read the table of one of torchvision's data sets, without downloading it.

    STL-10 (2.9 GB) is mapped into memory; torchvision reads CIFAR and MNIST. ImageNet's published validation part, on
    which papers report results, is split `test`; its classes are WordNet ids.

    `root` is torchvision's: the folder that holds `cifar-10-batches-py`, `cifar-100-python`, `train` and `val`,
    `MNIST/raw`, or `stl10_binary`. If it is incomplete, a ValueError says how to get the data set.
    """
    Choices(tuple(sorted(_READERS))).check("the data set of torchvision", name)
    return _READERS[name](root)


def _download(dataset: str, root: Path) -> str:
    return f'python -c "import torchvision; torchvision.datasets.{dataset}({str(root)!r}, download=True)"'


def _read_by_torchvision(dataset: str, folder: str, root: Path) -> ImageTable:
    arrays = []
    for split in ("train", "test"):
        data_set = _open(dataset, split, root)
        labels, load = np.asarray(data_set.targets, np.int64), partial(_load, dataset, split, root)
        version = partial(_version, root / folder)
        arrays.append(ImageArray(split, [split] * len(labels), labels, load, version, list(data_set.classes)))
    return tabulate_arrays(root, arrays)


def _open(dataset: str, split: str, root: Path) -> Any:
    import torchvision

    try:
        return getattr(torchvision.datasets, dataset)(root, train=split == "train", download=False)
    except PermissionError:
        raise
    except (RuntimeError, ValueError, AssertionError, EOFError, OSError) as error:
        how = f"remove its files, and get it with {_download(dataset, root)}"
        raise ValueError(f"{root} holds no complete {dataset}: {how}") from error


def _load(dataset: str, split: str, root: Path) -> Images:
    return np.asarray(_open(dataset, split, root).data)


def _version(folder: Path) -> tuple[int, ...]:
    """Return sizes and times of a data set's files."""
    return tuple(number for path in sorted(folder.iterdir()) for number in file_version(path))


def _read_stl10(root: Path) -> ImageTable:
    folder, how = root / "stl10_binary", f"get STL10 with {_download('STL10', root)}"
    expected = [f"{name}.bin" for name in ("train_X", "train_y", "test_X", "test_y", "unlabeled_X")]
    absent = [name for name in (*expected, "class_names.txt") if not (folder / name).is_file()]
    if absent:
        raise ValueError(f"{folder} holds no {', no '.join(absent)}; {how}")
    classes = (folder / "class_names.txt").read_text(encoding="utf-8").split()
    arrays = []
    for name in ("train", "test", "unlabeled"):
        images = folder / f"{name}_X.bin"
        num_images, rest = divmod(images.stat().st_size, math.prod(_STL10_SHAPE))
        labels = np.full(num_images, -1)
        if name != "unlabeled":
            labels = np.fromfile(folder / f"{name}_y.bin", np.uint8).astype(np.int64) - 1  # the file counts from 1
        codes = labels if name != "unlabeled" else labels + 1
        is_fit = len(labels) == num_images and set(codes.tolist()) <= set(range(len(classes)))
        if rest or not num_images or not is_fit:
            raise ValueError(f"{images} or its labels are truncated or damaged: remove them, and {how}")
        split, load, version = SPLIT_OF[name], partial(_map_stl10, images), partial(_version, folder)
        arrays.append(ImageArray(split, [split] * num_images, labels, load, version, classes))
    return tabulate_arrays(root, arrays)


def _map_stl10(path: Path) -> Images:
    pixels = np.memmap(path, np.uint8, mode="r").reshape(-1, *_STL10_SHAPE)
    return np.asarray(pixels).transpose(0, 3, 2, 1)  # n channels w h -> n h w channels


def _read_imagenet(root: Path) -> ImageTable:
    how = "torchvision.datasets.ImageNet unpacks its tars into train/CLASS and val/CLASS (datasets/imagenet/card.md)"
    absent = [folder for folder in ("train", "val") if not (root / folder).is_dir()]
    if absent:
        raise ValueError(f"{root} holds no folder {', no '.join(absent)} of ImageNet; {how}")
    names = [f"{folder}/{name}" for folder in ("train", "val") for name in find_images(root / folder)]
    table = tabulate(root, names)
    if (table.labels < 0).any():
        unsorted = table.names[int(np.flatnonzero(table.labels < 0)[0])]
        raise ValueError(f"{root / unsorted} is not in the folder of a class, such as train/n01440764; {how}")
    return replace(table, splits=["test" if split == "valid" else split for split in table.splits])


_READERS: dict[str, Callable[[Path], ImageTable]] = {
    "cifar10": partial(_read_by_torchvision, "CIFAR10", "cifar-10-batches-py"),
    "cifar100": partial(_read_by_torchvision, "CIFAR100", "cifar-100-python"),
    "imagenet": _read_imagenet,
    "mnist": partial(_read_by_torchvision, "MNIST", "MNIST/raw"),
    "stl10": _read_stl10,
}
