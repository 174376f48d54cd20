"""Write MNIST's idx files as train.npz and test.npz: python datasets/mnist/prepare.py DIR (see card.md)."""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from cpc.config.options import prepare_from_command_line
from cpc.data.images.sources import describe, write_arrays
from cpc.data.images.table import ImageTable
from cpc.data.store.folders import require_file


def prepare_mnist(root: Path, out: Path | None = None) -> ImageTable:
    """Write MNIST's four idx files as train.npz and test.npz.

    Args:
        root: folder with `train-images-idx3-ubyte.gz`, `train-labels-idx1-ubyte.gz` and the two of `t10k`;
            unpacked files are accepted too.
        out: folder for the arrays, 55 MB; ROOT unless given.

    Raises:
        ValueError: if a file is missing, damaged or not an idx file of bytes, or the numbers of images and labels
            differ.
    """
    arrays = {}
    for split, prefix in (("train", "train"), ("test", "t10k")):
        images = _read_idx(root / f"{prefix}-images-idx3-ubyte", num_axes=3)
        labels = _read_idx(root / f"{prefix}-labels-idx1-ubyte", num_axes=1)
        if len(images) != len(labels):
            raise ValueError(f"{root}: {prefix} has {len(images)} images and {len(labels)} labels; get both again")
        arrays[split] = {"images": images, "labels": labels.astype(np.int64)}
    return write_arrays(root if out is None else out, arrays)


def _read_idx(path: Path, num_axes: int) -> np.ndarray:
    """Read an idx file of bytes: two zeros, the type, the number of axes, their lengths (big-endian), the values."""
    packed = path.with_name(f"{path.name}.gz")
    require_file(packed if not path.is_file() else path)
    try:
        content = path.read_bytes() if path.is_file() else gzip.decompress(packed.read_bytes())
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{packed}: cannot be unpacked ({error}); get it again") from error
    values = np.frombuffer(content, np.uint8)
    header = 4 + 4 * num_axes
    shape = np.frombuffer(content[4:header].ljust(header - 4, b"\0"), ">u4").tolist()
    if content[:4] != bytes((0, 0, 0x08, num_axes)) or len(values) != header + math.prod(shape):
        raise ValueError(f"{path}: is not an idx file of bytes with {num_axes} axes, or a truncated one; get it again")
    return values[header:].reshape(shape)


if __name__ == "__main__":
    prepare_from_command_line(prepare_mnist, describe, published={"train": 60000, "test": 10000})
