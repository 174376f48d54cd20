"""Image files in a tree of folders: by split and class, by class alone, or just photographs."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cpc.data.images.table import FolderImages, ImageTable
from cpc.data.store.folders import find_files, name_a_few, refuse_doubles
from cpc.data.store.splits import SPLIT_OF, split_called, splits_of_folders

# What Pillow reads and people store pictures in; compared in lower case.
IMAGE_SUFFIXES = frozenset(
    ".jpg .jpeg .jpe .jfif .png .gif .bmp .webp .avif .tif .tiff .ppm .pgm .pbm .pnm .tga .jp2".split()
)


def read_image_folder(root: Path) -> ImageTable:
    """The table of all images below a folder, sorted by path.

    Three layouts are known by their first folders:

    - `SPLIT/CLASS/**/*.jpg`, if all of them are named as splits, in any case: train or training; valid, validation,
      val or dev; test, testing, eval or evaluation; unlabelled or unlabeled; or have such a word, as train2017. A split
      without folders in it has no labels, and neither has `unlabelled`, whatever its folders.
    - `CLASS/**/*.jpg`: everything is of split train.
    - photographs and no folders: everything is of split unlabelled.

    Names that begin with a dot are left out; links to folders are followed once.

    Raises:
        ValueError: if there is no image (the message says what there is), or images and folders lie beside each other
            that no layout explains, or one file is there under two names.
    """
    return tabulate(root, find_images(root))


def find_images(root: Path) -> list[str]:
    """Sorted posix paths, relative to `root`, of the files below it that are images by their suffix.

    Raises:
        ValueError: if there is none; the message says what there is.
    """
    arrays = "; arrays by their name: train.npz, valid.npz, test.npz, unlabelled.npz"
    return find_files(root, IMAGE_SUFFIXES, "image", arrays)


def tabulate(root: Path, names: Sequence[str]) -> ImageTable:
    """The table of these files, with splits and classes as their folders name them (see `read_image_folder`)."""
    refuse_doubles(root, names)
    folders = [name.split("/")[:-1] for name in names]
    tops = sorted({folder[0] for folder in folders if folder})
    loose = [name for name, folder in zip(names, folders, strict=True) if not folder]
    if tops and loose:
        raise ValueError(
            f"{root} holds {len(loose)} images beside the folders {', '.join(tops[:5])}:\n{name_a_few(loose)}\n"
            "move them into one of these, or name the folder that is meant"
        )
    split_of_top = splits_of_folders(tops)
    named = [top for top in tops if split_called(top)]
    others = [top for top in tops if not split_of_top and top not in named]
    # Trains are things that one photographs.
    if others and [top.lower() for top in named] not in ([], ["train"]):
        raise ValueError(
            f"{root} holds the splits {', '.join(named)} beside {len(others)} other folders:\n{name_a_few(others)}\n"
            f"move these away, or all classes into one of the splits ({', '.join(SPLIT_OF)})"
        )
    of_class: list[str | None]
    if others or not tops:
        splits = ["train" if tops else "unlabelled"] * len(names)
        of_class = [folder[0] if tops else None for folder in folders]
    else:
        splits = [split_of_top[folder[0]] for folder in folders]
        of_class = [
            None if split == "unlabelled" or len(folder) == 1 else folder[1]
            for folder, split in zip(folders, splits, strict=True)
        ]
        with_classes = {split for split, label in zip(splits, of_class, strict=True) if label is not None}
        rows = zip(names, splits, of_class, strict=True)
        strays = [name for name, split, label in rows if label is None and split in with_classes]
        if strays:
            raise ValueError(
                f"{len(strays)} images in {root} lie beside the folders of their split's classes:\n"
                f"{name_a_few(strays)}\nmove them into one of these, or into unlabelled"
            )
    classes = sorted({label for label in of_class if label is not None})
    code_of: dict[str | None, int] = {name: code for code, name in enumerate(classes)}
    labels = np.array([code_of.get(name, -1) for name in of_class], np.int64)
    return ImageTable(list(names), splits, labels, classes, FolderImages(root))
