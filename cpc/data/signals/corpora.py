"""Helpers of the scripts of public corpora of signals (`datasets/NAME/prepare.py`): an npz file with splits, labels.

n recordings of T samples in all, C channels.
"""

import importlib.util
import io
import pickle
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, Shaped

from cpc.config.extras import install_hint
from cpc.data.store.atomic import write_atomically
from cpc.data.store.contents import describe_splits


@dataclass(frozen=True)
class SignalArrays:
    """Recordings of one corpus, one after the other.

    Attributes:
        label: code of each recording `[n]` or of each sample `[T]`; -1 if there is none.
        split: split of each recording; None if the corpus has none.
        more_labels: further labels by the task's name: a string of each recording `[n]` or of each sample `[T]`; "" if
            there is none.
        units: unit of each channel, "" if unknown; None: all are unknown.
    """

    x: Shaped[np.ndarray, "T C"]
    length: Int[np.ndarray, " n"]
    group: Int[np.ndarray, " n"]
    label: Int[np.ndarray, " m"]
    classes: Sequence[str]
    channels: Sequence[str]
    sample_rate_hz: float
    split: Sequence[str] | None = None
    more_labels: Mapping[str, Sequence[str] | np.ndarray] = field(default_factory=dict)
    units: Sequence[str] | None = None


def write_recordings(path: Path, arrays: SignalArrays) -> tuple[Path, SignalArrays]:
    """Write the arrays to an npz file, which `cpc.data.Signals` takes as its source; return both."""
    columns: dict[str, Any] = {
        "x": arrays.x,
        "length": arrays.length.astype(np.int64),
        "group": arrays.group.astype(np.int64),
        "label": arrays.label.astype(np.int64 if len(arrays.label) == len(arrays.length) else np.int8),
        "classes": np.array(arrays.classes),
        "channels": np.array(arrays.channels),
        "sample_rate_hz": np.array(float(arrays.sample_rate_hz)),
        **{task: np.array(names) for task, names in arrays.more_labels.items()},
    }
    if arrays.units is not None:
        columns["units"] = np.array(arrays.units)
    if arrays.split is not None:
        columns["split"] = np.array(arrays.split)
    with write_atomically(path) as new, new.open("wb") as stream:
        np.savez_compressed(stream, **columns)
    return path, arrays


def describe(written: tuple[Path, SignalArrays], published: dict[str, int] | None = None) -> str:
    """Return a table of the splits: recordings, people, seconds, labelled share; `published` numbers if they differ."""
    path, arrays = written
    num, rate = len(arrays.length), arrays.sample_rate_hz
    of_sample = np.repeat(np.arange(num), arrays.length)
    has_label = arrays.label >= 0 if len(arrays.label) == len(of_sample) else (arrays.label >= 0)[of_sample]
    columns: dict[str, Callable[[np.ndarray], object]] = {
        "recordings": np.sum,
        "people": lambda is_here: len(np.unique(arrays.group[is_here])),
        "seconds": lambda is_here: f"{arrays.length[is_here].sum() / rate:.0f}",
        "labelled": lambda is_here: f"{has_label[is_here[of_sample]].mean() if is_here.any() else 0.0:.1%}",
    }
    if published and arrays.split is None:
        published = {"all": sum(published.values())}
    title = (
        f"{num} recordings of {len(arrays.channels)} channels ({', '.join(arrays.channels)}) at {rate:g} Hz in {path}"
    )
    table = describe_splits(title, ["all"] * num if arrays.split is None else arrays.split, columns, published)
    labels = arrays.label[arrays.label >= 0]
    unit = "recordings" if len(arrays.label) == num else "samples"
    counts = np.bincount(labels, minlength=len(arrays.classes))
    names = ", ".join(f"{name} {count}" for name, count in zip(arrays.classes, counts, strict=True))
    return f"{table}\n{unit} of each class: {names}"


CLASSES = ("PEN", "ABD", "FEL", "IR", "ER", "TRAP", "ROW")
CHANNELS = ("acc_x", "acc_y", "acc_z", "gyro_x", "gyro_y", "gyro_z")
UNITS = (*["g"] * 3, *["rad/s"] * 3)  # the median of the accelerometer's norm is 1.07, that of the gyroscope's 2.0
SIDES = ("left", "right")
RATE_HZ = 50.0
MEMBER = "seglearn/data/watch_dataset.npy"


def read_installed_smartwatch() -> SignalArrays:
    """Return the recordings of the installed package seglearn, which is not imported; absent, it is an error."""
    spec = importlib.util.find_spec("seglearn")
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(f"the smartwatch recordings are in the package seglearn: {install_hint('signals')}")
    return read_published_smartwatch(Path(next(iter(spec.submodule_search_locations))))


def read_published_smartwatch(root: Path) -> SignalArrays:
    """Return the recordings of seglearn's wheel, or of its folder or file `watch_dataset.npy`."""
    candidates = [*root.rglob("watch_dataset.npy"), *root.glob("seglearn-*.whl")] if root.is_dir() else [root]
    if not candidates or not candidates[0].is_file():
        raise ValueError(
            f"{root} has neither watch.npz nor watch_dataset.npy nor seglearn's wheel: `pip download seglearn`"
        )
    path = candidates[0]
    try:
        if path.suffix == ".whl":
            with zipfile.ZipFile(path) as wheel:
                content = wheel.read(MEMBER)
        else:
            content = path.read_bytes()
        data = _unpickle_array(content).item()
        signals = [np.asarray(signal, np.float32) for signal in data["X"]]
        labels, people, sides = (np.asarray(data[name]).astype(np.int64) for name in ("y", "subject", "side"))
        x = np.concatenate(signals)
    except (pickle.UnpicklingError, zipfile.BadZipFile, KeyError, TypeError, ValueError, EOFError) as error:
        raise ValueError(f"{path} is not seglearn's smartwatch set: {error}") from error
    return smartwatch_arrays(x, np.array([len(signal) for signal in signals]), labels, people, sides)


class _ArrayUnpickler(pickle.Unpickler):
    """Reads pickles of numpy's arrays; no other class or function is loaded, so that a pickle runs no code."""

    def find_class(self, module: str, name: str) -> Any:
        """Return one of the few names that arrays need."""
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return np._core.multiarray._reconstruct  # type: ignore[attr-defined]
        if (module, name) in (("numpy", "ndarray"), ("numpy", "dtype")):
            return getattr(np, name)
        if (module, name) == ("_codecs", "encode"):
            return _encode_latin1
        raise pickle.UnpicklingError(f"the pickle asks for {module}.{name}; allowed are numpy's arrays")


def _encode_latin1(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"the pickle asks for the encoding {encoding}; allowed is latin1")
    return text.encode("latin1")


def _unpickle_array(content: bytes) -> np.ndarray:
    stream = io.BytesIO(content)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("its npy header has another version")
    np.lib.format.read_array_header_1_0(stream)
    array: np.ndarray = _ArrayUnpickler(stream).load()
    return array


def smartwatch_arrays(
    x: np.ndarray, length: np.ndarray, label: np.ndarray, subject: np.ndarray, side: np.ndarray
) -> SignalArrays:
    """Return the recordings with names of classes, channels and sides."""
    sides = [SIDES[code] for code in side.tolist()]
    more_labels = {"side": sides}
    return SignalArrays(x, length, subject, label, CLASSES, CHANNELS, RATE_HZ, None, more_labels, UNITS)
