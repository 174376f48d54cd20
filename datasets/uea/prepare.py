"""Write data sets of the UEA archive as npz files: python datasets/uea/prepare.py DIR --out OUT (see card.md)."""

import gzip
import re
import zlib
from pathlib import Path

import numpy as np

from cpc.config.options import prepare_from_command_line
from cpc.data.store.atomic import write_atomically

PUBLISHED = {  # training and test recordings, samples, channels
    "BasicMotions": (40, 40, 100, 6),
    "SelfRegulationSCP1": (268, 293, 896, 6),
}

Shapes = dict[str, tuple[tuple[int, ...], tuple[int, ...], int]]


def prepare_uea(root: Path, out: Path | None = None) -> Shapes:
    """Write each data set to OUT/NAME.npz, a source of `cpc.data.Signals`.

    Args:
        root: folder with NAME_TRAIN.ts and NAME_TEST.ts of one or more data sets, at any depth, as they are or with
            `.gz`.
        out: folder to write; `root` if not given.

    Returns:
        Recordings, samples and channels of the training and the test part, and the number of classes, of each data set.

    Raises:
        ValueError: if one of two files is missing or damaged, or its size is not the published one.
    """
    found: dict[str, dict[str, Path]] = {}
    for path in sorted(root.rglob("*.ts*")):
        if match := re.fullmatch(r"(.+)_(TRAIN|TEST)\.ts(?:\.gz)?", path.name):
            found.setdefault(match[1], {})[match[2]] = path
    if not found:
        raise ValueError(f"{root} has no file like NAME_TRAIN.ts or NAME_TRAIN.ts.gz: unpack the archive there")
    shapes: Shapes = {}
    for name, files in found.items():
        if missing := {"TRAIN", "TEST"} - set(files):
            raise ValueError(f"{root} has no {name}_{missing.pop()}.ts, but both parts belong together")
        (train, train_labels), (test, test_labels) = _read(files["TRAIN"]), _read(files["TEST"])
        if train.shape[1:] != test.shape[1:] or set(train_labels) != set(test_labels):
            raise ValueError(
                f"{name}: the training part is {list(train.shape)} with classes {sorted(set(train_labels))}, the test "
                f"part {list(test.shape)} with {sorted(set(test_labels))}; samples, channels and classes must agree"
            )
        if name in PUBLISHED and (len(train), *test.shape) != PUBLISHED[name]:
            raise ValueError(
                f"{name} has {len(train)} and {len(test)} recordings, {train.shape[1]} samples and {train.shape[2]} "
                f"channels; {', '.join(map(str, PUBLISHED[name]))} are published"
            )
        with write_atomically((out or root) / f"{name}.npz") as new, new.open("wb") as stream:
            np.savez_compressed(
                stream,
                x=np.concatenate([test, train]).astype(np.float32),
                label=np.array([*test_labels, *train_labels]),
                split=np.repeat(["test", "train"], [len(test), len(train)]),
            )
        shapes[name] = (train.shape, test.shape, len(set(train_labels)))
    return shapes


def _read(path: Path) -> tuple[np.ndarray, list[str]]:
    """Return recordings `[n, T, C]` and their classes.

    After the line `@data`, a line is a recording: samples have commas between them, channels and the class colons.
    """
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="latin-1") as stream:
            lines = [line.strip() for line in stream]
        cases = [line.split(":") for line in lines[lines.index("@data") + 1 :] if line]
        values = np.array([[channel.split(",") for channel in channels] for *channels, _ in cases], np.float64)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise ValueError(f"{path} holds no recordings of one length and one class each: {error}") from error
    if values.ndim != 3:
        raise ValueError(f"{path} holds no recordings")
    return values.transpose(0, 2, 1), [label for *_, label in cases]


def describe_sets(shapes: Shapes) -> str:
    """Return a line for each data set."""
    lines = [f"{'data set':24}{'train':>7}{'test':>7}{'samples':>9}{'channels':>10}{'classes':>9}"]
    for name, (train, test, num_classes) in shapes.items():
        lines.append(f"{name:24}{train[0]:7}{test[0]:7}{train[1]:9}{train[2]:10}{num_classes:9}")
    return "\n".join(lines)


if __name__ == "__main__":
    prepare_from_command_line(prepare_uea, describe_sets)
