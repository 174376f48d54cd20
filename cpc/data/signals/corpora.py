"""Helpers of the scripts of public corpora of signals (`datasets/NAME/prepare.py`): an npz file with splits, labels.

n recordings of T samples in all, C channels.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, Shaped

from cpc.config.extras import install_hint
from cpc.data.store.atomic import write_atomically
from cpc.data.store.contents import describe_splits
from cpc.data.store.untrusted import reading


@dataclass(frozen=True)
class SignalArrays:
    """Recordings of one corpus, one after the other."""

    x: Shaped[np.ndarray, "T C"]
    length: Int[np.ndarray, " n"]
    group: Int[np.ndarray, " n"]
    label: Int[np.ndarray, " m"]  # code of each recording `[n]` or of each sample `[T]`; -1 if there is none
    classes: Sequence[str]
    channels: Sequence[str]
    sample_rate_hz: float
    split: Sequence[str] | None = None  # split of each recording; None if the corpus has none
    # Further labels by task, strings of recordings `[n]` or of samples `[T]`; "" if there is none.
    more_labels: Mapping[str, Sequence[str] | np.ndarray] = field(default_factory=dict)
    units: Sequence[str] | None = None  # unit of each channel, "" if unknown; None: all are unknown


def write_recordings(path: Path, arrays: SignalArrays) -> tuple[Path, SignalArrays]:
    """Write the arrays to an npz file, which `cpc.data.Signals` takes as its source; return both."""
    columns: dict[str, Any] = {**vars(arrays), **arrays.more_labels}
    columns |= {name: columns[name].astype(np.int64) for name in ("length", "group", "label")}
    if len(arrays.label) != len(arrays.length):  # labels of samples
        columns["label"] = arrays.label.astype(np.int8)
    columns = {name: each for name, each in columns.items() if each is not None and name != "more_labels"}
    with write_atomically(path) as new, new.open("wb") as stream:
        np.savez_compressed(stream, **columns)
    return path, arrays


def describe(written: tuple[Path, SignalArrays], published: dict[str, int] | None = None) -> str:
    """Return a table of recordings and seconds by split, with `published` numbers if they differ."""
    path, arrays = written
    num, rate = len(arrays.length), arrays.sample_rate_hz
    if published and arrays.split is None:
        published = {"all": sum(published.values())}
    title = f"{num} recordings of {len(arrays.channels)} channels at {rate:g} Hz in {path}"
    splits = ["all"] * num if arrays.split is None else arrays.split
    table = describe_splits(title, splits, published, seconds=arrays.length / rate)
    labels = arrays.label[arrays.label >= 0]
    unit = "recordings" if len(arrays.label) == num else "samples"
    counts = np.bincount(labels, minlength=len(arrays.classes))
    names = ", ".join(f"{name} {count}" for name, count in zip(arrays.classes, counts, strict=True))
    return f"{table}\n{len(np.unique(arrays.group))} people; {unit} of each class: {names}"


CLASSES = ("PEN", "ABD", "FEL", "IR", "ER", "TRAP", "ROW")
CHANNELS = ("acc_x", "acc_y", "acc_z", "gyro_x", "gyro_y", "gyro_z")
UNITS = (*["g"] * 3, *["rad/s"] * 3)  # the median of the accelerometer's norm is 1.07, that of the gyroscope's 2.0
SIDES = ("left", "right")
RATE_HZ = 50.0


def read_installed_smartwatch() -> SignalArrays:
    """Return the recordings of the installed package seglearn, which is not imported; absent, it is an error."""
    spec = importlib.util.find_spec("seglearn")
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(f"the smartwatch recordings are in the package seglearn: {install_hint('signals')}")
    path = Path(next(iter(spec.submodule_search_locations))) / "data" / "watch_dataset.npy"
    with reading(path, "is not seglearn's smartwatch set"):
        data = np.load(path, allow_pickle=True).item()  # the package is installed, so its pickle is no stranger's
        signals = [np.asarray(signal, np.float32) for signal in data["X"]]
        labels, people, sides = (np.asarray(data[name]).astype(np.int64) for name in ("y", "subject", "side"))
    lengths = np.array([len(signal) for signal in signals])
    return smartwatch_arrays(np.concatenate(signals), lengths, labels, people, sides)


def smartwatch_arrays(
    x: np.ndarray, length: np.ndarray, label: np.ndarray, subject: np.ndarray, side: np.ndarray
) -> SignalArrays:
    """Return the recordings with names of classes, channels and sides."""
    sides = [SIDES[code] for code in side.tolist()]
    more_labels = {"side": sides}
    return SignalArrays(x, length, subject, label, CLASSES, CHANNELS, RATE_HZ, None, more_labels, UNITS)
