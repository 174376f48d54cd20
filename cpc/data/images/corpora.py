"""Public image corpora: from the files as they come to arrays with splits and labels, which `read_image_source` reads.

One function per corpus; `datasets/NAME/prepare.py` calls it by way of `cpc.options.prepare_from_command_line`, and
`datasets/NAME/card.md` says what to get. Nothing is downloaded here.
"""

import gzip
import io
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from cpc.data.images.arrays import load_array
from cpc.data.images.sources import read_image_source
from cpc.data.images.table import ImageTable
from cpc.data.images.torchvision import read_torchvision
from cpc.data.made.photographs import write_image_corpora
from cpc.data.store.atomic import write_atomically

_CIFAR_SIDE = 32
_IDX_UINT8 = 8


def prepare_cifar10_jpeg(root: Path, out: Path | None = None) -> ImageTable:
    """Decode CIFAR-10 as JPEG into train.npz and test.npz.

    Args:
        root: folder with `train_jpeg_packed.npz` and `test_jpeg_packed.npz`.
        out: folder for the arrays, 184 MB; ROOT unless given.

    Raises:
        ValueError: if a file is missing or damaged, or an image is not 32 x 32.
    """
    decoded = {split: _decode_jpegs(root / f"{split}_jpeg_packed.npz") for split in ("train", "test")}
    return _write(root if out is None else out, decoded)


def _decode_jpegs(path: Path) -> dict[str, np.ndarray]:
    _require(path)
    blob, offsets, labels, classes = (load_array(path, name) for name in ("blob", "offsets", "labels", "classes"))
    images = np.zeros((len(offsets) - 1, _CIFAR_SIDE, _CIFAR_SIDE, 3), np.uint8)
    for row, (start, stop) in enumerate(pairwise(offsets.tolist())):
        try:
            with Image.open(io.BytesIO(blob[start:stop].tobytes())) as image:
                pixels = np.asarray(image.convert("RGB"))
        except OSError as error:
            raise ValueError(f"{path}: image {row} cannot be decoded ({error})") from error
        if pixels.shape != images.shape[1:]:
            raise ValueError(f"{path}: image {row} is {pixels.shape}, but must be {images.shape[1:]}")
        images[row] = pixels
    return {"images": images, "labels": labels.astype(np.int64), "classes": classes}


def prepare_mnist(root: Path, out: Path | None = None) -> ImageTable:
    """Write MNIST's four idx files as train.npz and test.npz.

    Args:
        root: folder with `train-images-idx3-ubyte.gz`, `train-labels-idx1-ubyte.gz` and the two of `t10k`;
            unpacked ones will do too.
        out: folder for the arrays, 55 MB; ROOT unless given.

    Raises:
        ValueError: if a file is missing, damaged or no idx file of bytes, or has not one label per image.
    """
    arrays = {}
    for split, prefix in (("train", "train"), ("test", "t10k")):
        images = _read_idx(root / f"{prefix}-images-idx3-ubyte", num_axes=3)
        labels = _read_idx(root / f"{prefix}-labels-idx1-ubyte", num_axes=1)
        if len(images) != len(labels):
            raise ValueError(f"{root}: {prefix} has {len(images)} images and {len(labels)} labels; get both anew")
        arrays[split] = {"images": images, "labels": labels.astype(np.int64)}
    return _write(root if out is None else out, arrays)


def _read_idx(path: Path, num_axes: int) -> UInt8[np.ndarray, "..."]:
    """An idx file of bytes: two zeros, the type, the number of axes, their lengths (big-endian), the values."""
    packed = path.with_name(f"{path.name}.gz")
    _require(packed if not path.is_file() else path)
    try:
        content = path.read_bytes() if path.is_file() else gzip.decompress(packed.read_bytes())
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{packed}: cannot be unpacked ({error}); get it anew") from error
    values = np.frombuffer(content, np.uint8)
    header = 4 + 4 * num_axes
    shape = np.frombuffer(content[4:header].ljust(header - 4, b"\0"), ">u4").astype(np.int64)
    if content[:4] != bytes((0, 0, _IDX_UINT8, num_axes)) or len(values) != header + shape.prod():
        raise ValueError(f"{path}: is no idx file of bytes with {num_axes} axes, or a truncated one; get it anew")
    return values[header:].reshape(shape)


def prepare_caltech101_small(root: Path) -> ImageTable:
    """Read the shrunk Caltech-101, which is laid out as it is used: nothing is written.

    Args:
        root: folder with `train/CLASS/*.jpg` and `test/CLASS/*.jpg`.

    Raises:
        ValueError: if a split is missing, or its classes are not those of the other.
    """
    table = read_image_source(root, valid_share=0.0)
    seen = {split: set(table.labels[table.rows(split)].tolist()) for split in ("train", "test")}
    one_sided = [table.classes[label] for label in sorted(seen["train"] ^ seen["test"])]
    if one_sided:
        raise ValueError(f"{root}: of {', '.join(one_sided)} there are images in one of train and test alone")
    return table


def prepare_stl10(root: Path) -> ImageTable:
    """Read STL-10 as torchvision unpacks it: nothing is written.

    Args:
        root: folder with `stl10_binary`.

    Raises:
        ValueError: if it is not there whole.
    """
    return read_torchvision("stl10", root)


def prepare_cifar100(root: Path) -> ImageTable:
    """Read CIFAR-100 as torchvision unpacks it: nothing is written.

    Args:
        root: folder with `cifar-100-python`.

    Raises:
        ValueError: if it is not there whole.
    """
    return read_torchvision("cifar100", root)


def prepare_imagenet(root: Path) -> ImageTable:
    """Read ImageNet (ILSVRC 2012) as torchvision unpacks it: nothing is written.

    Args:
        root: folder with `train` and `val`, each with a folder for every class.

    Raises:
        ValueError: if one is missing, or an image lies in no folder of a class.
    """
    return read_torchvision("imagenet", root)


def prepare_embedded_images(out: Path, seed: int = 0) -> ImageTable:
    """Cut scikit-image's photographs into crops, and enlarge scikit-learn's digits, as the quickstart does.

    Args:
        out: folder for `photographs.npz`, `digits.npz` and `images.json`.
        seed: of the draw of blocks and crops.

    Returns:
        The table of the photographs.

    Raises:
        ValueError: as `write_image_corpora`.
    """
    return read_image_source(write_image_corpora(out, seed=seed)["photographs"])


def describe_images(table: ImageTable, published: dict[str, int] | None = None) -> str:
    """A table of the splits: images, images with a label, and where `published` counts differ from these."""
    lines = [f"{len(table)} images in {table.origin.root}", f"{'split':12}{'images':>8}{'labelled':>10}"]
    splits = np.array(table.splits)
    for split in dict.fromkeys([*(published or {}), *table.splits]):
        is_here = splits == split
        line = f"{split:12}{is_here.sum():8}{(table.labels[is_here] >= 0).sum():10}"
        if published and published.get(split) != is_here.sum():
            line += f"   (published: {published.get(split, 0)})"
        lines.append(line)
    return "\n".join([*lines, f"{len(table.classes)} classes: {', '.join(table.classes)}"])


def _require(path: Path) -> None:
    if not path.is_file():
        raise ValueError(f"there is no {path}: the corpus's card says where it comes from")


def _write(out: Path, splits: dict[str, dict[str, Any]]) -> ImageTable:
    out.mkdir(parents=True, exist_ok=True)
    for split, arrays in splits.items():
        with write_atomically(out / f"{split}.npz") as new, new.open("wb") as stream:
            np.savez(stream, **arrays)
    return read_image_source(out, valid_share=0.0)
