"""Decode CIFAR-10 as JPEG to train.npz and test.npz: python datasets/cifar10_jpeg/prepare.py DIR (see card.md)."""

import io
from itertools import pairwise
from pathlib import Path

import numpy as np
from PIL import Image

from cpc.config.options import prepare_from_command_line
from cpc.data.images.arrays import load_array
from cpc.data.images.sources import describe, write_arrays
from cpc.data.images.table import ImageTable
from cpc.data.store.folders import require_file

SIDE = 32


def prepare_cifar10_jpeg(root: Path, out: Path | None = None) -> ImageTable:
    """Decode CIFAR-10 as JPEG into train.npz and test.npz.

    Args:
        root: folder with `train_jpeg_packed.npz` and `test_jpeg_packed.npz`.
        out: folder for the arrays, 184 MB; ROOT unless given.

    Raises:
        ValueError: if a file is missing or damaged, or an image is not 32 x 32.
    """
    decoded = {split: _decode_jpegs(root / f"{split}_jpeg_packed.npz") for split in ("train", "test")}
    return write_arrays(root if out is None else out, decoded)


def _decode_jpegs(path: Path) -> dict[str, np.ndarray]:
    require_file(path)
    blob, offsets, labels, classes = (load_array(path, name) for name in ("blob", "offsets", "labels", "classes"))
    images = np.zeros((len(offsets) - 1, SIDE, SIDE, 3), np.uint8)
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


if __name__ == "__main__":
    prepare_from_command_line(prepare_cifar10_jpeg, describe, published={"train": 50000, "test": 10000})
