"""Data sets in the layouts of torchvision's downloads: STL-10, CIFAR-10 and 100, MNIST, ImageNet."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cpc.data.images.arrays import ImageArray, Images, tabulate_arrays
from cpc.data.images.table import ImageTable, find_images, tabulate
from cpc.data.store.splits import SPLIT_OF

_STL10_SHAPE = (3, 96, 96)  # channels, columns, rows


def read_torchvision(name: str, root: Path) -> ImageTable:
    """Read the table of one of torchvision's data sets, without downloading it.

    torchvision reads CIFAR and MNIST, and checks CIFAR's checksums. STL-10 (2.9 GB) is mapped into memory, and only the
    sizes of its files are checked. ImageNet's published validation part, on which papers report results, is split
    `test`, so that `valid` can be drawn from `train`. The classes of ImageNet are WordNet ids.

    Args:
        name: cifar10, cifar100, imagenet, mnist or stl10.
        root: torchvision's `root`: the folder that holds `cifar-10-batches-py`, `cifar-100-python`, `train` and `val`,
            `MNIST/raw`, or `stl10_binary`.

    Raises:
        ValueError: if the name is unknown, or the data set is missing or incomplete; the message says how to get it.
    """
    if name not in _READERS:
        raise ValueError(f"{name!r} is not one of the known data sets of torchvision: {', '.join(sorted(_READERS))}")
    return _READERS[name](root)


def _download(dataset: str, root: Path) -> str:
    return f'python -c "import torchvision; torchvision.datasets.{dataset}({str(root)!r}, download=True)"'


def _read_by_torchvision(dataset: str, folder: str, root: Path) -> ImageTable:
    arrays = []
    for split in ("train", "test"):
        data_set = _open(dataset, split, root)
        labels, load = np.asarray(data_set.targets, np.int64), partial(_load, dataset, split, root)
        version = partial(_version, root / folder)
        arrays.append(ImageArray(split, [split] * len(labels), labels, load, version, list(data_set.classes)))
    return tabulate_arrays(root, arrays)


def _open(dataset: str, split: str, root: Path) -> Any:
    import torchvision

    try:
        return getattr(torchvision.datasets, dataset)(root, train=split == "train", download=False)
    except PermissionError:
        raise
    except (RuntimeError, ValueError, AssertionError, EOFError, OSError) as error:
        raise ValueError(
            f"{root} holds no complete {dataset}: remove its files, and get it with {_download(dataset, root)}"
        ) from error


def _load(dataset: str, split: str, root: Path) -> Images:
    return np.asarray(_open(dataset, split, root).data)


def _version(folder: Path) -> tuple[int, ...]:
    """Return sizes and times of a data set's files."""
    statuses = [path.stat() for path in sorted(folder.iterdir())]
    return tuple(value for status in statuses for value in (status.st_size, status.st_mtime_ns))


def _read_stl10(root: Path) -> ImageTable:
    folder, how = root / "stl10_binary", f"get STL10 with {_download('STL10', root)}"
    expected = [f"{name}.bin" for name in ("train_X", "train_y", "test_X", "test_y", "unlabeled_X")]
    absent = [name for name in (*expected, "class_names.txt") if not (folder / name).is_file()]
    if absent:
        raise ValueError(f"{folder} holds no {', no '.join(absent)}; {how}")
    classes = (folder / "class_names.txt").read_text(encoding="utf-8").split()
    arrays = []
    for name in ("train", "test", "unlabeled"):
        images, labels_file = folder / f"{name}_X.bin", folder / f"{name}_y.bin"
        num_images, rest = divmod(images.stat().st_size, int(np.prod(_STL10_SHAPE)))
        if rest or not num_images:
            raise ValueError(f"{images} is truncated: remove it, and {how}")
        labels = np.full(num_images, -1)
        if name != "unlabeled":
            labels = np.fromfile(labels_file, np.uint8).astype(np.int64) - 1  # the file has labels from 1 to 10
            if len(labels) != num_images or labels.min() < 0 or labels.max() >= len(classes):
                raise ValueError(
                    f"{labels_file}: holds {len(labels)} labels, but must hold a label from 1 to {len(classes)} for "
                    f"each of {num_images} images; {how}"
                )
        split, load, version = SPLIT_OF[name], partial(_map_stl10, images), partial(_version, folder)
        arrays.append(ImageArray(split, [split] * num_images, labels, load, version, classes))
    return tabulate_arrays(root, arrays)


def _map_stl10(path: Path) -> Images:
    pixels = np.memmap(path, np.uint8, mode="r").reshape(-1, *_STL10_SHAPE)
    return np.asarray(pixels).transpose(0, 3, 2, 1)  # n channels w h -> n h w channels


def _read_imagenet(root: Path) -> ImageTable:
    how = (
        "put ILSVRC2012_devkit_t12.tar.gz, ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar (image-net.org, after "
        'registration) there, and unpack them with python -c "from torchvision.datasets import ImageNet; '
        f"[ImageNet({str(root)!r}, split) for split in ('train', 'val')]\""
    )
    absent = [folder for folder in ("train", "val") if not (root / folder).is_dir()]
    if absent:
        raise ValueError(f"{root} holds no folder {', no '.join(absent)} of ImageNet; {how}")
    names = [f"{folder}/{name}" for folder in ("train", "val") for name in find_images(root / folder)]
    table = tabulate(root, names)
    if (table.labels < 0).any():
        unsorted = table.names[int(np.flatnonzero(table.labels < 0)[0])]
        raise ValueError(f"{root / unsorted} is not in the folder of a class, such as train/n01440764; {how}")
    return replace(table, splits=["test" if split == "valid" else split for split in table.splits])


_READERS: dict[str, Callable[[Path], ImageTable]] = {
    "cifar10": partial(_read_by_torchvision, "CIFAR10", "cifar-10-batches-py"),
    "cifar100": partial(_read_by_torchvision, "CIFAR100", "cifar-100-python"),
    "imagenet": _read_imagenet,
    "mnist": partial(_read_by_torchvision, "MNIST", "MNIST/raw"),
    "stl10": _read_stl10,
}
