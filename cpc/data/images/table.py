"""A table of images: name, split and label of each image, and the source of its pixels. n images."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int64
from PIL import Image, UnidentifiedImageError

from cpc.data.store.atomic import json_text
from cpc.data.store.folders import name_a_few
from cpc.data.store.splits import SPLITS
from cpc.data.store.untrusted import reading


class FolderImages:
    """Image files below a folder, named by their relative paths; subclasses read other sources.

    Args:
        root: the folder; also the default folder of packs.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextmanager
    def open(self, name: str) -> Iterator[Image.Image]:
        """Open an image; decode it inside the `with` block. An error there becomes a ValueError that names the file."""
        path = self.root / name
        with reading(path, "cannot be decoded: it is damaged, truncated or not an image"):
            try:
                image = Image.open(path)
            except UnidentifiedImageError as error:
                # Pillow's message repeats the name of the file.
                raise TypeError("its format is unknown to Pillow") from error
            except Image.DecompressionBombError as error:
                most = 2 * (Image.MAX_IMAGE_PIXELS or 0)
                raise ValueError(f"{path}: has more pixels than the maximum, {most}: scale it down") from error
            with image:
                yield image

    def version(self, name: str) -> tuple[int, ...]:
        """Return numbers that change with the file: size in bytes, time in nanoseconds; -1 if it is missing."""
        try:
            status = (self.root / name).stat()
        except OSError:
            return -1, -1
        return status.st_size, status.st_mtime_ns

    def loaded(self) -> AbstractContextManager[None]:
        """Return a context in which several threads may call `open`."""
        return nullcontext()


@dataclass(frozen=True, repr=False, eq=False)
class ImageTable:
    """The properties of images, row by row, without their pixels.

    Attributes:
        names: name of each image: path relative to the source, or `array:row`.
        splits: split of each image: train, valid, test or unlabelled.
        labels: index in `classes`, or -1 if unknown.
        classes: name of each class; empty if no image has a label.
        origin: source of the pixels.
        sequences: sequence number of each image, equal for images that depend on each other, such as overlapping crops
            or frames of a film. None: every image is a sequence, numbered by its row.

    Raises:
        ValueError: if the columns differ in length, a name occurs twice, a split is unknown, or a label is not a class.
    """

    names: list[str]
    splits: list[str]
    labels: Int64[np.ndarray, " n"]
    classes: list[str]
    origin: FolderImages
    sequences: Int64[np.ndarray, " n"] = None  # type: ignore[assignment]  # filled in below

    def __post_init__(self) -> None:
        if self.sequences is None:
            object.__setattr__(self, "sequences", np.arange(len(self.names)))
        lengths = {name: len(getattr(self, name)) for name in ("names", "splits", "labels", "sequences")}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"{self.origin.root}: the columns of a table must have the same length; found {lengths}")
        repeated = [name for name, count in Counter(self.names).items() if count > 1]
        if repeated:
            raise ValueError(
                f"{self.origin.root}: {len(repeated)} names occur more than once in the table:\n{name_a_few(repeated)}"
            )
        strange = sorted(set(self.splits) - set(SPLITS))
        if strange:
            names = ", ".join(map(repr, strange[:5]))
            raise ValueError(f"{self.origin.root}: the split {names} is not one of {', '.join(SPLITS)}")
        wrong = np.flatnonzero((self.labels < -1) | (self.labels >= len(self.classes)))
        if len(wrong):
            lines = [f"{self.names[row]}: {self.labels[row]}" for row in wrong[:5].tolist()]
            raise ValueError(
                f"{self.origin.root}: {len(wrong)} of {len(self)} labels are not among the {len(self.classes)} classes "
                f"(a label is a class index below {len(self.classes)}, or -1 if unknown):\n{name_a_few(lines)}"
            )

    def __len__(self) -> int:
        return len(self.names)

    def rows(self, split: str | None) -> Int64[np.ndarray, " rows"]:
        """Return the rows of one split; None: all.

        Raises:
            ValueError: if the split has no row; the message lists the splits.
        """
        if split is None:
            return np.arange(len(self))
        rows = np.flatnonzero([own == split for own in self.splits])
        if not len(rows):
            splits = ", ".join(sorted(set(self.splits)))
            raise ValueError(
                f"no image in {self.origin.root} is of split {split!r}; its splits are {splits}: name one of these"
            )
        return rows

    def open(self, row: int) -> AbstractContextManager[Image.Image]:
        """Open the image of one row (see `FolderImages.open`). The image is neither decoded yet nor rotated by EXIF."""
        return self.origin.open(self.names[row])

    def fingerprint(self) -> str:
        """Return a hash of names, sizes and times (for npz files, checksums). It changes if any image changes.

        Reading the size and time of a million files takes seconds.
        """
        digest = hashlib.sha256()
        for name in self.names:
            digest.update(json_text([name, *self.origin.version(name)]).encode())
        return digest.hexdigest()
