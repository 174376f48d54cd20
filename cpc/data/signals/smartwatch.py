"""The smartwatch set that ships in seglearn's wheel: seven shoulder exercises of ten people.

Burns et al. 2018, arXiv:1802.01489.
"""

import importlib.util
import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from cpc.config.extras import install_hint
from cpc.data.signals.corpora import SignalArrays

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
