"""Recordings of the UEA and UCR archives: `.ts` files, read by aeon, also compressed (`.ts.gz`).

T samples, C channels.
"""

import gzip
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from cpc.data.recordings.labels import labels_of_recordings
from cpc.data.signals.listing import Listing, Reader
from cpc.data.store.splits import SPLIT_OF
from cpc.data.store.untrusted import reading

SUFFIXES = (".ts", ".ts.gz")


def is_ts(path: Path) -> bool:
    """Return whether the name of a path is that of a `.ts` file."""
    return path.name.lower().endswith(SUFFIXES)


def ts_files(path: Path) -> list[Path]:
    """Return the `.ts` files of a folder, or the file together with the one of its name for the other split.

    `NAME_TRAIN.ts` and `NAME_TEST.ts` are the splits of one archive; a folder that holds several is an error.
    """
    folder = path if path.is_dir() else path.parent
    files = sorted(file for file in folder.iterdir() if is_ts(file) and not file.name.startswith("."))
    if path.is_dir():
        if len(files) > 1 and len({_archive(file)[0] for file in files}) > 1:
            raise ValueError(
                f"{path} holds {', '.join(file.name for file in files)}: name the file of one archive as the source"
            )
        return files
    name, split = _archive(path)
    return [file for file in files if split and _archive(file)[0] == name and _archive(file)[1]] or [path]


def list_ts(paths: Sequence[Path]) -> Listing:
    """List the recordings of `.ts` files; the name of a file (`_TRAIN`, `_TEST`) is the split of its recordings.

    Raises:
        ValueError: if a file is damaged, has timestamps, or other channels than the others; the message names it.
    """
    cases = [_read(path) for path in paths]
    names, splits, classes = [], [], []
    for path, (recordings, labels) in zip(paths, cases, strict=True):
        split = _archive(path)[1]
        prefix = f"{split} " if split else ""
        names += [f"{prefix}recording {index}" for index in range(len(recordings))]
        splits += [split] * len(recordings)
        classes += labels
    everything = [
        (recording, path) for path, (recordings, _) in zip(paths, cases, strict=True) for recording in recordings
    ]
    for recording, path in everything:
        if len(recording) != len(everything[0][0]):
            raise ValueError(
                f"{everything[0][1]} has {len(everything[0][0])} channels, {path} {len(recording)}; all recordings of "
                "a source have the same channels"
            )
    status = [path.stat() for path in paths]
    return Listing(
        names=names,
        channels=[str(channel) for channel in range(len(everything[0][0]))],
        num_samples=[recording.shape[1] for recording, _ in everything],
        reader=Reader(_read_case, partial(_read_all, paths)),
        version=[(path.name, each.st_size, each.st_mtime_ns) for path, each in zip(paths, status, strict=True)],
        splits=splits,
        labels={"label": labels_of_recordings(classes)} if any(classes) else {},
    )


def _read_all(paths: Sequence[Path]) -> list[np.ndarray]:
    return [recording for path in paths for recording in _read(path)[0]]


def _read_case(recordings: Sequence[np.ndarray], row: int, columns: Sequence[int]) -> Iterator[np.ndarray]:
    yield recordings[row][list(columns)].T


def _archive(path: Path) -> tuple[str, str]:
    """Return the name of an archive and the split of its file; "" if the name has none."""
    stem = path.name[: -len(".ts.gz")] if path.name.lower().endswith(".gz") else path.stem
    name, _, word = stem.rpartition("_")
    return (name, SPLIT_OF[word.lower()]) if name and word.lower() in SPLIT_OF else (stem, "")


def _read(path: Path) -> tuple[list[np.ndarray], list[str]]:
    """Return the recordings of a file, `[C, T]` float64, and their labels ("" without)."""
    try:
        from aeon.datasets import load_from_ts_file
    except ImportError as error:
        raise ValueError(
            f"{path}: .ts files need the package `aeon`: install it with `pip install aeon 'numba>=0.63.1'`"
        ) from error
    with reading(path, "cannot be read as a .ts file"), tempfile.TemporaryDirectory() as folder:
        plain = path
        if path.suffix.lower() == ".gz":
            plain = Path(folder) / "archive.ts"
            with gzip.open(path) as packed, plain.open("wb") as stream:
                shutil.copyfileobj(packed, stream)
        data, labels, about = load_from_ts_file(str(plain), return_meta_data=True)
        if not len(data) or not all(np.size(case) for case in data):
            raise ValueError("it has no recordings, or recordings without samples")
        if about["timestamps"]:
            raise ValueError("it has timestamps, which its reader aeon strips together with the signs of values")
    if about["targetlabel"]:
        warnings.warn(f"{path}: ignored the targets, which are numbers; labels are classes", stacklevel=2)
    has_classes = about["classlabel"] and len(labels) == len(data)
    return [np.asarray(case) for case in data], [str(label) for label in labels] if has_classes else [""] * len(data)
