"""Check and unpack `.ts` files of the UEA archive: python datasets/uea/prepare.py DIR --out OUT (see card.md)."""

import gzip
import re
import shutil
import zlib
from pathlib import Path

import numpy as np

from cpc.config.options import prepare_from_command_line
from cpc.data.store.atomic import write_atomically

PUBLISHED = {  # training and test recordings, channels, samples
    "BasicMotions": (40, 40, 6, 100),
    "SelfRegulationSCP1": (268, 293, 6, 896),
}
SPLITS = ("TRAIN", "TEST")

Shapes = dict[str, tuple[tuple[int, int, int], tuple[int, int, int], int]]


def prepare_uea(root: Path, out: Path | None = None) -> Shapes:
    """Unpack each data set to OUT/NAME/NAME_TRAIN.ts and OUT/NAME/NAME_TEST.ts, and read both as aeon does.

    The folder OUT/NAME is a source of `cpc.data.Signals`: the two files are its splits.

    Args:
        root: folder with NAME_TRAIN.ts and NAME_TEST.ts of one or more data sets, at any depth, as they are or with
            `.gz`.
        out: folder to write; if not given, the files stay as they are, and none may be compressed.

    Returns:
        Recordings, channels and samples of the training and the test part, and the number of classes, of each data set.

    Raises:
        ValueError: if aeon is missing, one of two files is missing or damaged, or its size is not the published one.
    """
    found: dict[str, dict[str, Path]] = {}
    for path in sorted(root.rglob("*.ts*")):
        if match := re.fullmatch(r"(.+)_(TRAIN|TEST)\.ts(?:\.gz)?", path.name):
            found.setdefault(match[1], {})[match[2]] = path
    if not found:
        raise ValueError(f"{root} has no file like NAME_TRAIN.ts or NAME_TRAIN.ts.gz: unpack the archive there")
    shapes: Shapes = {}
    for name, files in found.items():
        if missing := set(SPLITS) - set(files):
            raise ValueError(f"{root} has no {name}_{missing.pop()}.ts, but both parts belong together")
        if out is not None:
            files = {split: _unpack(path, out / name / f"{name}_{split}.ts") for split, path in files.items()}
        shapes[name] = _check(name, files)
    return shapes


def describe_sets(shapes: Shapes) -> str:
    """Return a line for each data set."""
    lines = [f"{'data set':24}{'train':>7}{'test':>7}{'channels':>10}{'samples':>9}{'classes':>9}"]
    for name, (train, test, num_classes) in shapes.items():
        lines.append(f"{name:24}{train[0]:7}{test[0]:7}{train[1]:10}{train[2]:9}{num_classes:9}")
    return "\n".join(lines)


def _unpack(path: Path, target: Path) -> Path:
    with write_atomically(target) as new, new.open("wb") as stream:
        try:
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as source:
                shutil.copyfileobj(source, stream)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ValueError(f"{path} cannot be unpacked: {error}") from error
    return target


def _check(name: str, files: dict[str, Path]) -> tuple[tuple[int, int, int], tuple[int, int, int], int]:
    try:
        from aeon.datasets import load_from_ts_file
    except ImportError as error:
        raise ValueError(
            f".ts files need the package aeon ({error}): install it with `pip install aeon 'numba>=0.63.1'`"
        ) from error
    shapes, classes = [], []
    for split in SPLITS:
        if files[split].suffix == ".gz":
            raise ValueError(f"{files[split]} is compressed: pass `out`, and the script unpacks it there")
        try:
            values, labels = load_from_ts_file(str(files[split]))
        except (OSError, ValueError, IndexError, KeyError) as error:
            raise ValueError(f"{files[split]} cannot be read: {error}") from error
        if not isinstance(values, np.ndarray) or values.ndim != 3:
            raise ValueError(
                f"{files[split]} has recordings of different lengths; this script checks those of one length"
            )
        shapes.append(values.shape)
        classes.append(set(np.asarray(labels).tolist()))
    train, test = shapes
    if train[1:] != test[1:] or classes[0] != classes[1]:
        raise ValueError(
            f"{name}: the training part is {list(train)} with classes {sorted(classes[0])}, the test part {list(test)} "
            f"with {sorted(classes[1])}; channels, samples and classes must agree"
        )
    if name in PUBLISHED and (train[0], test[0], *train[1:]) != PUBLISHED[name]:
        raise ValueError(
            f"{name} has {train[0]} and {test[0]} recordings, {train[1]} channels and {train[2]} samples; "
            f"{', '.join(map(str, PUBLISHED[name]))} are published"
        )
    return train, test, len(classes[0])


if __name__ == "__main__":
    prepare_from_command_line(prepare_uea, describe_sets)
