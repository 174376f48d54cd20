"""Write watch.npz, a source of `cpc.data.Signals`: python datasets/watch/prepare.py DIR --out OUT (see card.md)."""

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from cpc.config.options import prepare_from_command_line
from cpc.data.images.arrays import load_array
from cpc.data.signals.corpora import SignalArrays, describe, write_recordings

CLASSES = ("PEN", "ABD", "FEL", "IR", "ER", "TRAP", "ROW")
CHANNELS = ("acc_x", "acc_y", "acc_z", "gyro_x", "gyro_y", "gyro_z")
SIDES = ("left", "right")
RATE_HZ = 50.0
MEMBER = "seglearn/data/watch_dataset.npy"


def prepare_watch(root: Path, out: Path | None = None) -> tuple[Path, SignalArrays]:
    """Write the smartwatch recordings of seglearn to one npz file, with a label for each recording.

    Args:
        root: seglearn's wheel or its `watch_dataset.npy`; the folder of one of these; or the folder of `watch.npz` with
            `x`, `length`, `label`, `subject` and `side`.
        out: path of the npz file; `watch_recordings.npz` in the folder if not given.

    Raises:
        ValueError: if files are missing or damaged, or the pickle holds more than arrays, lists and strings.
    """
    folder = root if root.is_dir() else root.parent
    packed = root / "watch.npz"
    arrays = _read_packed(packed) if packed.is_file() else _read_published(root)
    return write_recordings(folder / "watch_recordings.npz" if out is None else out, arrays)


def _read_packed(path: Path) -> SignalArrays:
    return _as_arrays(*(load_array(path, name) for name in ("x", "length", "label", "subject", "side")))


def _read_published(root: Path) -> SignalArrays:
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
    return _as_arrays(x, np.array([len(signal) for signal in signals]), labels, people, sides)


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


def _as_arrays(
    x: np.ndarray, length: np.ndarray, label: np.ndarray, subject: np.ndarray, side: np.ndarray
) -> SignalArrays:
    sides = [SIDES[code] for code in side.tolist()]
    return SignalArrays(x, length, subject, label, CLASSES, CHANNELS, RATE_HZ, more_labels={"side": sides})


if __name__ == "__main__":
    prepare_from_command_line(prepare_watch, describe, published={"train": 140})
