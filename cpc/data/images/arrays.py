"""Images in npz files, and in other arrays that load as `[n, h, w]` or `[n, h, w, channels]` uint8."""

import math
import sys
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
from cpc.data.store.contents import SPLIT_OF, split_called
from cpc.data.store.folders import refuse_doubles
from cpc.data.store.untrusted import reading

MOST_CLASSES = 1_000_000
_MOST_INFLATION = 1032  # largest ratio of the sizes after and before decompression
_COLUMNS = {  # for each array besides `images`: legal kinds of dtype, and a description for messages
    "labels": ("iu", "whole numbers"),
    "sequence": ("iu", "whole numbers"),
    "classes": ("US", "strings"),
    "split": ("US", "strings"),
}

Images = UInt8[np.ndarray, "n h w"] | UInt8[np.ndarray, "n h w channels"]


@dataclass(frozen=True)
class ImageArray:
    """One array of n images, loaded when it is needed; `load` and `version` can be pickled."""

    name: str  # first part of the images' names
    splits: list[str]  # split of each image
    labels: np.ndarray  # `[n]` int64, -1 if unknown
    load: Callable[[], Images]
    version: Callable[[], tuple[int, ...]]  # returns numbers that change if the images change
    classes: list[str] | None = None  # name of each class; None: the names in other arrays, or numbers
    sequences: np.ndarray | None = None  # `[n]` first row of each image's sequence; None: every image is a sequence


class ArrayImages(FolderImages):
    """Images in arrays, named `array:row`. Pickling does not copy pixels; another process loads them again."""

    def __init__(self, root: Path, arrays: Sequence[ImageArray]) -> None:
        super().__init__(root)
        self._arrays = {array.name: array for array in arrays}
        self._versions = {array.name: array.version() for array in arrays}
        self._pixels: dict[str, Images] = {}

    @contextmanager
    def open(self, name: str) -> Iterator[Image.Image]:
        """Open one image; its array is loaded and kept."""
        array, _, row = name.rpartition(":")
        if array not in self._pixels:
            self._pixels[array] = self._load(array)
        pixels = self._pixels[array][int(row)]
        yield Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels)

    def version(self, name: str) -> tuple[int, ...]:
        """Return the version of the image's array when the table was read."""
        return self._versions[name.rpartition(":")[0]]

    @contextmanager
    def loaded(self) -> Iterator[None]:
        """Hold all arrays in memory while the block runs, and release them afterwards."""
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
    """Return one table of the images in all arrays, in order; different arrays are different sequences."""
    labels = np.concatenate([array.labels for array in arrays])
    classes = [str(label) for label in range(int(labels.max()) + 1)]
    named = [array for array in arrays if array.classes is not None]
    for array in named:
        classes = named[0].classes or []
        if array.classes != classes:
            differ = f"{named[0].name} and {array.name} differ: {classes} and {array.classes}"
            raise ValueError(f"{root}: the classes of {differ}")
    names: list[str] = []
    sequences = []
    for array in arrays:
        rows = np.arange(len(array.labels))
        sequences.append(len(names) + (rows if array.sequences is None else array.sequences))
        names += [f"{array.name}:{row}" for row in rows]
    splits = [split for array in arrays for split in array.splits]
    return ImageTable(names, splits, labels, classes, ArrayImages(root, arrays), np.concatenate(sequences))


def read_image_arrays(paths: Sequence[Path], *, are_splits: bool) -> ImageTable:
    """Return the table of the images in npz files of one folder, without loading the pixels.

    Every file holds `images`, uint8 `[n, h, w]` or `[n, h, w, channels]` with 1, 3 or 4 channels. Optional arrays are
    `labels`, integers `[n]`, -1 if unknown; `classes`, the names of the labels (numbers, if no file names them); and
    `sequence`, integers `[n]`, equal for images of the file that depend on each other, such as overlapping crops: they
    come in different batches, are held out together, and are resampled together by intervals.

    If `are_splits`, the name of each file is its split. Otherwise an array `split`, `[n]` strings, holds the splits;
    without it all images are of split train, or of unlabelled if no image has a label. A file that cannot be read, or
    has arrays of another type, shape or length, is a ValueError that names it.
    """
    refuse_doubles(paths[0].parent, [path.name for path in paths])
    arrays = [_read_file(path, are_splits) for path in paths]
    if len({array.name for array in arrays}) < len(arrays):
        raise ValueError(f"{', '.join(map(str, paths))}: two of these files are of one split; join them, or remove one")
    try:
        return tabulate_arrays(paths[0].parent, arrays)
    except ValueError as error:
        raise ValueError(f"{', '.join(path.name for path in paths)}: {error}") from error


def _read_file(path: Path, is_split: bool) -> ImageArray:
    known = {"images", *_COLUMNS} - ({"split"} if is_split else set())
    members, shape, dtype = _read_header(path)
    if dtype != np.uint8 or len(shape) not in (3, 4) or 0 in shape or shape[3:] not in ((), (1,), (3,), (4,)):
        legal = "uint8 [n, h, w] or [n, h, w, channels] with 1, 3 or 4 channels, and n at least 1"
        raise ValueError(f"{path}: images are {dtype} {list(shape)}, but must be {legal}")
    if ignored := ", ".join(sorted(members - known)):
        known_names = ", ".join(sorted(known))
        warnings.warn(f"{path}: the arrays {ignored} are ignored; only {known_names} are read", stacklevel=2)
    columns: dict[str, np.ndarray] = {}
    for name in (members & known) - {"images"}:
        kinds, words = _COLUMNS[name]
        column = load_array(path, name)
        expected = (column.size if name == "classes" else shape[0],)
        if column.dtype.kind not in kinds or column.shape != expected:
            found = f"{name} is {column.dtype} {list(column.shape)}"
            raise ValueError(f"{path}: {found}, but must be {words} {list(expected)}")
        columns[name] = column
    labels = columns.get("labels", np.full(shape[0], -1))
    least, most = int(labels.min()), int(labels.max())
    if least < -1 or most >= MOST_CLASSES:
        legal = f"-1 (unknown) to {MOST_CLASSES - 1}"
        raise ValueError(f"{path}: labels go from {least} to {most}, but must lie in {legal}")
    classes = columns["classes"].astype(str).tolist() if "classes" in columns else None
    if classes is not None and len(set(classes)) < len(classes):
        raise ValueError(f"{path}: a class occurs twice in classes: {', '.join(classes)}")
    default = SPLIT_OF[path.stem.lower()] if is_split else "unlabelled" if most < 0 else "train"
    splits = columns.get("split", np.full(shape[0], default)).astype(str).tolist()
    ids = columns.get("sequence", np.arange(shape[0]))
    _, first_rows, sequence = np.unique(ids, return_index=True, return_inverse=True)
    return ImageArray(
        name=default if is_split else path.stem,
        splits=[split_called(split) or split for split in splits],
        labels=labels.astype(np.int64),
        load=partial(load_array, path, "images"),
        version=partial(_checksum, path),
        classes=classes,
        sequences=first_rows[sequence],
    )


@contextmanager
def open_npz(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an npz file; every error of the reader becomes a ValueError that names the file."""
    with reading(path, "cannot be read as an npz file"), zipfile.ZipFile(path) as archive:
        start = min((member.header_offset for member in archive.infolist()), default=0)
        if start:
            raise ValueError(f"{start} bytes lie before its arrays: files were joined; split them")
        yield archive


def _read_header(path: Path) -> tuple[set[str], tuple[int, ...], np.dtype]:
    """Return the names of the arrays, and shape and type of `images`, without reading the pixels."""
    with open_npz(path) as archive:
        members = {member.removesuffix(".npy") for member in archive.namelist()}
        if "images" in members:
            return members, *array_header(archive, "images")
    raise ValueError(f"{path}: has no array 'images', only {', '.join(sorted(members)) or 'nothing'}: rename one")


def load_array(path: Path, name: str) -> np.ndarray:
    """Load one array of an npz file; raise a ValueError that names the file if it is damaged or lacks the array."""
    with open_npz(path) as archive:
        array_header(archive, name)
        with archive.open(f"{name}.npy") as stream:
            array: np.ndarray = np.lib.format.read_array(stream)
        if array.dtype.kind == "U" and array.dtype.itemsize:
            code_points = array.ravel().view(f"{array.dtype.str[0]}u4")
            if code_points.max(initial=0) > sys.maxunicode:  # numpy reads it; str raises a SystemError later
                raise ValueError(f"{name} holds characters that are not in Unicode")
        return array


def array_header(archive: zipfile.ZipFile, name: str) -> tuple[tuple[int, ...], np.dtype]:
    """Return shape and type of an array; raise ValueError if the shape exceeds the file, before memory is allocated."""
    with archive.open(f"{name}.npy") as stream:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
    member = archive.getinfo(f"{name}.npy")
    if math.prod(shape) * dtype.itemsize > min(member.file_size, _MOST_INFLATION * member.compress_size):
        raise ValueError(f"fewer {name} than its shape {list(shape)} promises")
    return shape, dtype


def _checksum(path: Path) -> tuple[int, ...]:
    """Return length and CRC-32 of the images, as listed in the zip file; they do not depend on its path."""
    with open_npz(path) as archive:
        member = archive.getinfo("images.npy")
        return member.file_size, member.CRC
