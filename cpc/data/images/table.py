"""A table of images: the name, split and label of each, and where its pixels lie. n images."""

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
    """Where images lie: the files below a folder, each known by its path from there; a subclass may have others.

    Args:
        root: the folder; packs go there too, unless another place is named.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextmanager
    def open(self, name: str) -> Iterator[Image.Image]:
        """One image, which may be decoded inside only; any error there becomes a ValueError that names it."""
        path = self.root / name
        with reading(path, "cannot be decoded, it is damaged, truncated or no image"):
            try:
                image = Image.open(path)
            except UnidentifiedImageError as error:
                raise TypeError("no format that Pillow knows") from error  # whose own words name the file again
            except Image.DecompressionBombError as error:
                most = 2 * (Image.MAX_IMAGE_PIXELS or 0)
                raise ValueError(f"{path}: has more than the {most} pixels that are opened: scale it down") from error
            with image:
                yield image

    def version(self, name: str) -> tuple[int, ...]:
        """Numbers that change with the image: size in bytes and time in nanoseconds; -1 for a file that is gone."""
        try:
            status = (self.root / name).stat()
        except OSError:
            return -1, -1
        return status.st_size, status.st_mtime_ns

    def loaded(self) -> AbstractContextManager[None]:
        """Inside, `open` may be called by several threads at once."""
        return nullcontext()


@dataclass(frozen=True, repr=False, eq=False)
class ImageTable:
    """Images, row by row: what is known of them without a look at their pixels.

    Attributes:
        names: path relative to the source, or `array:row`; each is one image.
        splits: one of train, valid, test, unlabelled.
        labels: position in `classes`, or -1 where unknown.
        classes: name of each class; empty if no image has a label.
        origin: where the pixels are.
        sequences: images of one sequence share a number: overlapping crops, frames of a film, whatever is not
            independent of each other. Unless given, every image is one of its own, numbered by its row.

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
            raise ValueError(f"{self.origin.root}: the columns of a table have one length; found {lengths}")
        repeated = [name for name, count in Counter(self.names).items() if count > 1]
        if repeated:
            raise ValueError(
                f"{self.origin.root}: {len(repeated)} names occur more than once in the table:\n{name_a_few(repeated)}"
            )
        strange = sorted(set(self.splits) - set(SPLITS))
        if strange:
            given = ", ".join(map(repr, strange[:5]))
            raise ValueError(f"{self.origin.root}: there is no split {given}; legal are {', '.join(SPLITS)}")
        wrong = np.flatnonzero((self.labels < -1) | (self.labels >= len(self.classes)))
        if len(wrong):
            found = [f"{self.names[row]}: {self.labels[row]}" for row in wrong[:5].tolist()]
            raise ValueError(
                f"{self.origin.root}: {len(wrong)} of {len(self)} labels are not among the {len(self.classes)} classes "
                f"(legal are -1 for unknown to {len(self.classes) - 1}):\n{name_a_few(found)}"
            )

    def __len__(self) -> int:
        return len(self.names)

    def rows(self, split: str | None) -> Int64[np.ndarray, " rows"]:
        """Which rows are of one split; None: all.

        Raises:
            ValueError: if no row is of this split; the message lists the splits there are.
        """
        if split is None:
            return np.arange(len(self))
        rows = np.flatnonzero([own == split for own in self.splits])
        if not len(rows):
            found = ", ".join(sorted(set(self.splits)))
            raise ValueError(
                f"no image in {self.origin.root} is of split {split!r}, only of {found}: name one of these"
            )
        return rows

    def open(self, row: int) -> AbstractContextManager[Image.Image]:
        """The image of one row as Pillow opens it (see `FolderImages.open`): not decoded, not turned upright."""
        return self.origin.open(self.names[row])

    def fingerprint(self) -> str:
        """A hash of names, sizes and times (npz: checksums) that changes with any image.

        Every file's size and time are looked up again, which takes seconds for a million files.
        """
        digest = hashlib.sha256()
        for name in self.names:
            digest.update(json_text([name, *self.origin.version(name)]).encode())
        return digest.hexdigest()
