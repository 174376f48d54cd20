"""Image files in a tree of folders: by split and class, only by class, or without folders."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cpc.data.images.table import FolderImages, ImageTable
from cpc.data.store.folders import find_files, name_a_few, refuse_doubles
from cpc.data.store.splits import SPLIT_OF, split_called, splits_of_folders

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

    Names that begin with a dot are left out. Links to folders are followed once.

    Raises:
        ValueError: if there is no image (the message lists other files), images and folders do not fit a layout, or a
            file is found under two names.
    """
    return tabulate(root, find_images(root))


def find_images(root: Path) -> list[str]:
    """Return the image files below a folder, by their suffix: sorted posix paths, relative to `root`.

    Raises:
        ValueError: if there is no image; the message lists other files.
    """
    arrays = "; arrays by their name: train.npz, valid.npz, test.npz, unlabelled.npz"
    return find_files(root, IMAGE_SUFFIXES, "image", arrays)


def tabulate(root: Path, names: Sequence[str]) -> ImageTable:
    """Return the table of these files; folders name splits and classes (see `read_image_folder`)."""
    refuse_doubles(root, names)
    folders = [name.split("/")[:-1] for name in names]
    tops = sorted({folder[0] for folder in folders if folder})
    loose = [name for name, folder in zip(names, folders, strict=True) if not folder]
    if tops and loose:
        raise ValueError(
            f"{root} holds {len(loose)} images beside the folders {', '.join(tops[:5])}:\n{name_a_few(loose)}\n"
            "move them into one of these folders, or name the folder to read"
        )
    split_of_top = splits_of_folders(tops)
    named = [top for top in tops if split_called(top)]
    others = [top for top in tops if not split_of_top and top not in named]
    # A folder `train` beside other folders may be a class of railway trains.
    if others and [top.lower() for top in named] not in ([], ["train"]):
        raise ValueError(
            f"{root} holds the splits {', '.join(named)} beside {len(others)} other folders:\n{name_a_few(others)}\n"
            f"move these away, or all classes into one of the splits ({', '.join(SPLIT_OF)})"
        )
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
        if strays:
            raise ValueError(
                f"{len(strays)} images in {root} lie beside the folders of their split's classes:\n"
                f"{name_a_few(strays)}\nmove them into one of these folders, or into unlabelled"
            )
    classes = sorted(set(class_names) - {""})
    code_of = {name: code for code, name in enumerate(classes)}
    labels = np.array([code_of.get(name, -1) for name in class_names], np.int64)
    return ImageTable(list(names), splits, labels, classes, FolderImages(root))
