"""Write watch.npz, a source of `cpc.data.Signals`: python datasets/watch/prepare.py DIR --out OUT (see card.md)."""

from pathlib import Path

from cpc.config.options import prepare_from_command_line
from cpc.data.images.arrays import load_array
from cpc.data.signals.corpora import (
    SignalArrays,
    describe,
    read_installed_smartwatch,
    smartwatch_arrays,
    write_recordings,
)


def prepare_watch(root: Path, out: Path | None = None) -> tuple[Path, SignalArrays]:
    """Write the smartwatch recordings of seglearn to one npz file, with a label for each recording.

    Args:
        root: folder of `watch.npz` with `x`, `length`, `label`, `subject` and `side`; without this file, the recordings
            are those of the installed package seglearn.
        out: path of the npz file; `watch_recordings.npz` in the folder if not given.

    Raises:
        ValueError: if the package is not installed, or a file is damaged.
    """
    packed = root / "watch.npz"
    arrays = _read_packed(packed) if packed.is_file() else read_installed_smartwatch()
    return write_recordings(root / "watch_recordings.npz" if out is None else out, arrays)


def _read_packed(path: Path) -> SignalArrays:
    return smartwatch_arrays(*(load_array(path, name) for name in ("x", "length", "label", "subject", "side")))


if __name__ == "__main__":
    prepare_from_command_line(prepare_watch, describe, published={"train": 140})
