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

from cpc.data.images.table import FolderImages, ImageTable
from cpc.data.store.folders import refuse_doubles
from cpc.data.store.splits import SPLIT_OF, split_called
from cpc.data.store.untrusted import reading

MOST_CLASSES = 1_000_000
_MOST_UNPACKED = 1032  # bytes from one: no deflated file holds more
_COLUMNS = {  # beside `images`: types, and what they are
    "labels": ("iu", "whole numbers"),
    "sequence": ("iu", "whole numbers"),
    "classes": ("US", "strings"),
    "split": ("US", "strings"),
}

Images = UInt8[np.ndarray, "n h w"] | UInt8[np.ndarray, "n h w channels"]


@dataclass(frozen=True)
class ImageArray:
    """One array of n images, loaded when it is needed.

    Attributes:
        name: first part of its images' names.
        splits: of each image.
        labels: `[n]` int64, -1 where unknown.
        load: returns the images; can be pickled.
        version: returns numbers that change with the array; can be pickled.
        classes: name of each class; None: as other arrays say, or numbers.
        sequences: `[n]` first row of each image's sequence; None: every image is one of its own.
    """

    name: str
    splits: list[str]
    labels: np.ndarray
    load: Callable[[], Images]
    version: Callable[[], tuple[int, ...]]
    classes: list[str] | None = None
    sequences: np.ndarray | None = None


class ArrayImages(FolderImages):
    """Images in arrays, each known as `array:row`. A copy sent to another process loads them again.

    Args:
        root: folder of the arrays' files.
        arrays: the arrays, each by a name of its own.
    """

    def __init__(self, root: Path, arrays: Sequence[ImageArray]) -> None:
        super().__init__(root)
        self._arrays = {array.name: array for array in arrays}
        self._versions = {array.name: array.version() for array in arrays}
        self._pixels: dict[str, Images] = {}

    @contextmanager
    def open(self, name: str) -> Iterator[Image.Image]:
        """One image; its array is loaded first, and kept."""
        array, _, row = name.rpartition(":")
        if array not in self._pixels:
            self._pixels[array] = self._load(array)
        pixels = self._pixels[array][int(row)]
        yield Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels)

    def version(self, name: str) -> tuple[int, ...]:
        """The version of its array when the table was read."""
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


def tabulate_arrays(root: Path, arrays: Sequence[ImageArray]) -> ImageTable:
    """The table of the images in arrays, one after the other; sequences are numbered in all of them.

    Raises:
        ValueError: if arrays disagree about the classes, two have one name, or a label or split is not legal.
    """
    labels = np.concatenate([array.labels for array in arrays])
    classes = [str(label) for label in range(int(labels.max()) + 1)]
    named = [array for array in arrays if array.classes is not None]
    for array in named:
        classes = named[0].classes or []
        if array.classes != classes:
            raise ValueError(
                f"{root}: {named[0].name} and {array.name} disagree about classes: {classes} and {array.classes}"
            )
    splits = [split for array in arrays for split in array.splits]
    names = [f"{array.name}:{row}" for array in arrays for row in range(len(array.labels))]
    first_rows = np.cumsum([0, *(len(array.labels) for array in arrays[:-1])])
    sequences = [
        first_row + (np.arange(len(array.labels)) if array.sequences is None else array.sequences)
        for first_row, array in zip(first_rows, arrays, strict=True)
    ]
    return ImageTable(names, splits, labels, classes, ArrayImages(root, arrays), np.concatenate(sequences))


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
            length; if two files are of one split, or are one file; as `tabulate_arrays`.
    """
    refuse_doubles(paths[0].parent, [path.name for path in paths])
    arrays = [_read_file(path, are_splits) for path in paths]
    if len({array.name for array in arrays}) < len(arrays):
        raise ValueError(f"{', '.join(map(str, paths))}: two of these are of one split; join or remove one")
    try:
        return tabulate_arrays(paths[0].parent, arrays)
    except ValueError as error:  # which begins with the folder
        raise ValueError(f"{', '.join(path.name for path in paths)} in {error}") from error


def _read_file(path: Path, is_split: bool) -> ImageArray:
    known = {"images", *_COLUMNS} - ({"split"} if is_split else set())
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
    columns: dict[str, np.ndarray] = {}
    for name in (members & known) - {"images"}:
        kinds, meant = _COLUMNS[name]
        found = load_array(path, name)
        expected = (found.size if name == "classes" else shape[0],)
        if found.dtype.kind not in kinds or found.shape != expected:
            raise ValueError(
                f"{path}: {name} is {found.dtype} {list(found.shape)}, but must be {meant} {list(expected)}"
            )
        columns[name] = found
    labels = columns.get("labels", np.full(shape[0], -1))
    if int(labels.min()) < -1 or int(labels.max()) >= MOST_CLASSES:
        raise ValueError(
            f"{path}: labels go from {labels.min()} to {labels.max()}, but legal are -1 for unknown ones to "
            f"{MOST_CLASSES - 1}"
        )
    classes = columns["classes"].astype(str).tolist() if "classes" in columns else None
    if classes is not None and len(set(classes)) < len(classes):
        raise ValueError(f"{path}: a class occurs twice in classes: {', '.join(classes)}")
    default = SPLIT_OF[path.stem.lower()] if is_split else "unlabelled" if int(labels.max()) < 0 else "train"
    splits = columns.get("split", np.full(shape[0], default)).astype(str).tolist()
    _, first_rows, sequence = np.unique(
        columns.get("sequence", np.arange(shape[0])), return_index=True, return_inverse=True
    )
    return ImageArray(
        name=SPLIT_OF[path.stem.lower()] if is_split else path.stem,
        splits=[split_called(split) or split for split in splits],
        labels=labels.astype(np.int64),
        load=partial(load_array, path, "images"),
        version=partial(_checksum, path),
        classes=classes,
        sequences=first_rows[sequence],
    )


@contextmanager
def open_npz(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an npz file; whatever the reader complains about becomes a ValueError that names the file."""
    with reading(path, "cannot be read as an npz file"), zipfile.ZipFile(path) as archive:
        start = min((member.header_offset for member in archive.infolist()), default=0)
        if start:
            raise ValueError(f"{start} bytes lie before its arrays: files were joined; give each its own file")
        yield archive


def _look_into(path: Path) -> tuple[set[str], tuple[int, ...], np.dtype]:
    """The names of the arrays, and shape and type of `images`, without reading it."""
    with open_npz(path) as archive:
        members = {member.removesuffix(".npy") for member in archive.namelist()}
        if "images" in members:
            return members, *_header(archive, "images")
    raise ValueError(
        f"{path}: has no array 'images', only {', '.join(sorted(members)) or 'nothing'}; rename the one meant"
    )


def load_array(path: Path, name: str) -> np.ndarray:
    """One array of an npz file; raises a ValueError that names the file if it cannot be read, or has no such array."""
    with open_npz(path) as archive:
        _header(archive, name)
        with archive.open(f"{name}.npy") as stream:
            return np.lib.format.read_array(stream)


def _header(archive: zipfile.ZipFile, name: str) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and type of an array, which must not promise more than is there: readers allocate what it says."""
    with archive.open(f"{name}.npy") as stream:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
    member = archive.getinfo(f"{name}.npy")
    if math.prod(shape) * dtype.itemsize > min(member.file_size, _MOST_UNPACKED * member.compress_size):
        raise ValueError(f"fewer {name} than its shape {list(shape)} promises")
    return shape, dtype


def _checksum(path: Path) -> tuple[int, ...]:
    """Length and CRC-32 of the images, as the zip file's directory has them: of the content, wherever it lies."""
    with open_npz(path) as archive:
        member = archive.getinfo("images.npy")
        return member.file_size, member.CRC
