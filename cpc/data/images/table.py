"""A table of images: name, split and label of each image, and the source of its pixels; tables of folders. n images."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int64
from PIL import Image, UnidentifiedImageError

from cpc.data.store.atomic import json_text
from cpc.data.store.contents import SPLIT_OF, SPLITS, rows_of_split, split_called, splits_of_folders
from cpc.data.store.folders import file_version, find_files, refuse, refuse_doubles
from cpc.data.store.shards import Shards
from cpc.data.store.untrusted import reading


class FolderImages:
    """Image files below a folder, named by their relative paths; subclasses read other sources.

    `root` is also the default folder of packs. `shards` holds the images if they are squares in shards.
    """

    def __init__(self, root: Path, shards: Shards | None = None) -> None:
        self.root = root
        self.shards = shards

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
        """Return numbers that change with the file."""
        return file_version(self.root / name)

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
        sequences: sequence number of each image, equal for images that depend on each other, such as overlapping crops
            or frames of a film. None: every image is a sequence, numbered by its row.
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
        root = self.origin.root
        lengths = {name: len(getattr(self, name)) for name in ("names", "splits", "labels", "sequences")}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"{root}: the columns of a table must have the same length; found {lengths}")
        repeated = [name for name, count in Counter(self.names).items() if count > 1]
        refuse(f"names in {root} occur more than once in the table", repeated)
        strange = sorted(set(self.splits) - set(SPLITS))
        refuse(f"splits of {root} are none of {', '.join(SPLITS)}", map(repr, strange))
        wrong = np.flatnonzero((self.labels < -1) | (self.labels >= len(self.classes)))
        problem = f"of {len(self)} labels in {root} are neither the index of one of {len(self.classes)} classes nor -1"
        refuse(problem, [f"{self.names[row]}: {self.labels[row]}" for row in wrong.tolist()])

    def __len__(self) -> int:
        return len(self.names)

    def rows(self, split: str | None) -> Int64[np.ndarray, " rows"]:
        """Return the rows of one split, of which there must be one; None: all."""
        return rows_of_split(self.splits, split, f"image in {self.origin.root}")

    def open(self, row: int) -> AbstractContextManager[Image.Image]:
        """Open the image of one row (see `FolderImages.open`). The image is neither decoded yet nor rotated by EXIF."""
        return self.origin.open(self.names[row])

    def fingerprint(self) -> str:
        """Return a hash of names, sizes and times (for npz files, checksums). It changes if any image changes."""
        digest = hashlib.sha256()
        for name in self.names:
            digest.update(json_text([name, *self.origin.version(name)]).encode())
        return digest.hexdigest()


# Image formats that Pillow reads; compared in lower case.
IMAGE_SUFFIXES = frozenset(
    ".jpg .jpeg .jpe .jfif .png .gif .bmp .webp .avif .tif .tiff .ppm .pgm .pbm .pnm .tga .jp2".split()
)


def read_image_folder(root: Path) -> ImageTable:
    """Return the table of all images below a folder, sorted by path.

    The first folders decide between three layouts:

    - `SPLIT/CLASS/**/*.jpg`, if the names of all first folders are words for splits, in any case: train or training;
      valid, validation, val or dev; test, testing, eval or evaluation; unlabelled or unlabeled. Names that contain such
      a word (train2017) count too. A split without folders has no labels. `unlabelled` never has labels.
    - `CLASS/**/*.jpg`: all images are of split train.
    - images without folders: all images are of split unlabelled.

    A folder of another layout, without images, or with a file under two names is a ValueError.
    """
    return tabulate(root, find_images(root))


def find_images(root: Path) -> list[str]:
    """Return the image files below a folder, by their suffix: sorted posix paths, relative to `root`."""
    arrays = "; arrays by their name: train.npz, valid.npz, test.npz, unlabelled.npz"
    return find_files(root, IMAGE_SUFFIXES, "image", arrays)


def tabulate(root: Path, names: Sequence[str]) -> ImageTable:
    """Return the table of these files; folders name splits and classes (see `read_image_folder`)."""
    refuse_doubles(root, names)
    folders = [name.split("/")[:-1] for name in names]
    tops = sorted({folder[0] for folder in folders if folder})
    loose = [name for name, folder in zip(names, folders, strict=True) if not folder]
    if tops:
        advice = "move them into one of these folders, or name the folder to read"
        refuse(f"images in {root} lie beside the folders {', '.join(tops[:5])}", loose, advice)
    split_of_top = splits_of_folders(tops)
    named = [top for top in tops if split_called(top)]
    others = [top for top in tops if not split_of_top and top not in named]
    # A folder `train` beside other folders may be a class of railway trains.
    if others and [top.lower() for top in named] not in ([], ["train"]):
        problem = f"other folders of {root} lie beside the splits {', '.join(named)}"
        refuse(problem, others, f"move these away, or all classes into one of the splits ({', '.join(SPLIT_OF)})")
    if others or not tops:
        splits = ["train" if tops else "unlabelled"] * len(names)
        class_names = [folder[0] if tops else "" for folder in folders]
    else:
        splits = [split_of_top[folder[0]] for folder in folders]
        class_names = [
            "" if split == "unlabelled" or len(folder) == 1 else folder[1]
            for folder, split in zip(folders, splits, strict=True)
        ]
        labelled_splits = {split for split, label in zip(splits, class_names, strict=True) if label}
        rows = zip(names, splits, class_names, strict=True)
        strays = [name for name, split, label in rows if not label and split in labelled_splits]
        advice = "move them into one of these folders, or into unlabelled"
        refuse(f"images in {root} lie beside the folders of their split's classes", strays, advice)
    classes = sorted(set(class_names) - {""})
    code_of = {name: code for code, name in enumerate(classes)}
    labels = np.array([code_of.get(name, -1) for name in class_names], np.int64)
    return ImageTable(list(names), splits, labels, classes, FolderImages(root))
