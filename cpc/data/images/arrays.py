"""Images in arrays: npz files, and whatever else loads as `[n, h, w]` or `[n, h, w, channels]` uint8."""

import math
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from cpc.data.audio.headers import obstacle
from cpc.data.images.table import SPLIT_OF, ImageTable
from cpc.data.store.folders import refuse_doubles

MOST_CLASSES = 1_000_000

Images = UInt8[np.ndarray, "n h w"] | UInt8[np.ndarray, "n h w channels"]


@dataclass(frozen=True)
class ImageArray:
    """One array of images, loaded when it is needed.

    Attributes:
        name: first part of its images' names.
        splits: of each image.
        labels: of each image, int64, -1 where unknown.
        load: returns the images; can be pickled.
        version: returns numbers that change with the array; can be pickled.
    """

    name: str
    splits: list[str]
    labels: np.ndarray
    load: Callable[[], Images]
    version: Callable[[], tuple[int, ...]]


class ArrayImages:
    """Images in arrays, each known as `array:row`. A copy sent to another process loads them again.

    Args:
        root: folder of the arrays' files.
        arrays: the arrays, each by a name of its own.
    """

    def __init__(self, root: Path, arrays: Sequence[ImageArray]) -> None:
        self.root = root
        self._arrays = {array.name: array for array in arrays}
        self._versions = {array.name: array.version() for array in arrays}
        self._pixels: dict[str, Images] = {}

    @property
    def names(self) -> list[str]:
        """The names of all images, array after array."""
        return [f"{array.name}:{row}" for array in self._arrays.values() for row in range(len(array.labels))]

    @contextmanager
    def open(self, name: str) -> Iterator[Image.Image]:
        """One image; its array is loaded first, and kept."""
        array, _, row = name.rpartition(":")
        if array not in self._pixels:
            self._pixels[array] = self._load(array)
        pixels = self._pixels[array][int(row)]
        yield Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels)

    def version(self, name: str) -> tuple[int, ...]:
        """That of its array when the table was read."""
        return self._versions[name.rpartition(":")[0]]

    @contextmanager
    def loaded(self) -> Iterator[None]:
        """Holds all arrays in memory while the block runs, and forgets them."""
        self._pixels = {name: self._load(name) for name in self._arrays}
        try:
            yield
        finally:
            self._pixels = {}

    def _load(self, name: str) -> Images:
        array = self._arrays[name]
        if array.version() != self._versions[name]:
            raise ValueError(f"the images {name!r} in {self.root} have changed since they were read; read them again")
        return array.load()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_pixels": {}}


def tabulate_arrays(
    root: Path, arrays: Sequence[ImageArray], classes: list[str], sequences: np.ndarray | None = None
) -> ImageTable:
    """The table of the images in arrays, one after the other; sequences are numbered in all of them."""
    origin = ArrayImages(root, arrays)
    splits = [split for array in arrays for split in array.splits]
    labels = np.concatenate([array.labels for array in arrays])
    sequences = np.arange(len(labels)) if sequences is None else sequences
    return ImageTable(origin.names, splits, labels, classes, origin, sequences)


def find_image_arrays(folder: Path) -> list[Path]:
    """The npz files of a folder that are named after splits, in the order of the splits."""
    return [path for name in SPLIT_OF if (path := folder / f"{name}.npz").is_file()]


def read_image_arrays(paths: Sequence[Path], *, are_splits: bool) -> ImageTable:
    """The table of the images in npz files; the pixels themselves are not loaded yet.

    Every file holds `images`, uint8 `[n, h, w]` or `[n, h, w, channels]` with 1, 3 or 4 channels. It may hold `labels`,
    whole numbers `[n]`, -1 where unknown, and `classes`, their names: numbers, where no file names them. An array
    `sequence`, whole numbers `[n]`, says which images of the file overlap or are tied in another way: they share a
    number (see `ImageTable.sequences`).

    Args:
        paths: the files, of one folder.
        are_splits: each is the split that its name says. Otherwise an array `split`, `[n]` strings, says it; without
            one all images are of split train, or of unlabelled if none has a label.

    Raises:
        ValueError: naming the file, if it cannot be read, lacks `images`, or an array has another type, shape or
            length; if a label is no class, files disagree about the classes, two are of one split, or are one file.
    """
    refuse_doubles(paths[0].parent, [path.name for path in paths])
    arrays, named, sequences = zip(*(_read_file(path, are_splits) for path in paths), strict=True)
    if len({array.splits[0] for array in arrays}) < len(arrays):
        raise ValueError(f"{', '.join(map(str, paths))}: two of these are of one split; join or remove one")
    classes = _common_classes(paths, named, max(int(array.labels.max()) for array in arrays) + 1)
    for path, array in zip(paths, arrays, strict=True):
        highest = int(array.labels.max())
        if highest >= len(classes):
            raise ValueError(
                f"{path}: a label is {highest}, but there are {len(classes)} classes, so that legal labels are -1 for "
                f"unknown to {len(classes) - 1}"
            )
    first_rows = np.cumsum([0, *map(len, sequences[:-1])])
    numbered = np.concatenate([first_row + of_file for first_row, of_file in zip(first_rows, sequences, strict=True)])
    return tabulate_arrays(paths[0].parent, arrays, classes, numbered)


def _read_file(path: Path, is_split: bool) -> tuple[ImageArray, list[str] | None, np.ndarray]:
    """An array of images, the names of its classes, and the row of the first image of each one's sequence."""
    known = {"images", "labels", "classes", "sequence"} | (set() if is_split else {"split"})
    members, shape, dtype = _look_into(path)
    if dtype != np.uint8 or len(shape) not in (3, 4) or 0 in shape or shape[3:] not in ((), (1,), (3,), (4,)):
        raise ValueError(
            f"{path}: images are {dtype} {list(shape)}, but must be uint8 [n, h, w] or [n, h, w, channels] with 1, "
            "3 or 4 channels, and n at least 1"
        )
    ignored = sorted(members - known)
    if ignored:
        warnings.warn(
            f"{path}: ignored the arrays {', '.join(ignored)}; known are {', '.join(sorted(known))}", stacklevel=2
        )
    num_images = shape[0]

    def column(name: str, kinds: str, meant: str, length: int | None = num_images) -> np.ndarray | None:
        if name not in members & known:
            return None
        found = load_array(path, name)
        expected = (found.size if length is None else length,)
        if found.dtype.kind not in kinds or found.shape != expected:
            raise ValueError(
                f"{path}: {name} is {found.dtype} {list(found.shape)}, but must be {meant} {list(expected)}"
            )
        return found.astype(str) if kinds == "US" else found

    labels = column("labels", "iu", "whole numbers")
    if labels is None:
        labels = np.full(num_images, -1)
    elif int(labels.min()) < -1 or int(labels.max()) >= MOST_CLASSES:
        raise ValueError(
            f"{path}: labels go from {labels.min()} to {labels.max()}, but legal are -1 for unknown ones to "
            f"{MOST_CLASSES - 1}"
        )
    names = column("classes", "US", "strings", length=None)
    classes = None if names is None else names.tolist()
    if classes is not None and len(set(classes)) < len(classes):
        raise ValueError(f"{path}: a class occurs twice in classes: {', '.join(classes)}")
    splits = column("split", "US", "strings")
    if splits is None:
        default = SPLIT_OF[path.stem] if is_split else "unlabelled" if int(labels.max()) < 0 else "train"
        splits = np.full(num_images, default)
    strange = sorted(set(splits.tolist()) - set(SPLIT_OF))
    if strange:
        raise ValueError(f"{path}: split is {', '.join(map(repr, strange[:5]))}; legal are {', '.join(SPLIT_OF)}")
    sequences = column("sequence", "iu", "whole numbers")
    if sequences is None:
        sequences = np.arange(num_images)
    _, first_rows, sequence = np.unique(sequences, return_index=True, return_inverse=True)
    array = ImageArray(
        name=SPLIT_OF[path.stem] if is_split else path.stem,
        splits=[SPLIT_OF[split] for split in splits.tolist()],
        labels=labels.astype(np.int64),
        load=partial(load_array, path, "images"),
        version=partial(_checksum, path),
    )
    return array, classes, first_rows[sequence]


def _common_classes(paths: Sequence[Path], named: Sequence[list[str] | None], num_classes: int) -> list[str]:
    """The classes that files name, or else their numbers."""
    found = [(path, classes) for path, classes in zip(paths, named, strict=True) if classes is not None]
    if not found:
        return [str(label) for label in range(num_classes)]
    first, classes = found[0]
    for path, others in found[1:]:
        if others != classes:
            raise ValueError(f"{first} and {path} disagree about classes: {classes} and {others}")
    return classes


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Whatever the reader complains about becomes a ValueError that names the file."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # BadZipFile, zlib.error, EOFError, KeyError, numpy's own ...
        raise ValueError(f"{path}: {obstacle(path) or f'cannot be read as an npz file ({error})'}") from error


def _look_into(path: Path) -> tuple[set[str], tuple[int, ...], np.dtype]:
    """The names of the arrays, and shape and type of `images`, without reading it."""
    with _reading(path), zipfile.ZipFile(path) as archive:
        members = {member.removesuffix(".npy") for member in archive.namelist()}
        if "images" in members:
            with archive.open("images.npy") as stream:
                version = np.lib.format.read_magic(stream)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, _, dtype = read(stream)
                if math.prod(shape) * dtype.itemsize > archive.getinfo("images.npy").file_size:
                    raise ValueError(f"fewer images than its shape {list(shape)} promises")
                return members, shape, dtype
    raise ValueError(
        f"{path}: has no array 'images', only {', '.join(sorted(members)) or 'nothing'}; rename the one meant"
    )


def load_array(path: Path, name: str) -> np.ndarray:
    """One array of an npz file; raises a ValueError that names the file if it cannot be read, or has no such array."""
    with _reading(path), np.load(path) as arrays:
        found: np.ndarray = arrays[name]
        return found


def _checksum(path: Path) -> tuple[int, ...]:
    """Length and CRC-32 of the images, as the zip file's directory has them: of the content, wherever it lies."""
    with _reading(path), zipfile.ZipFile(path) as archive:
        member = archive.getinfo("images.npy")
        return member.file_size, member.CRC
