"""Write watch.npz, a source of `cpc.data.Signals`: python datasets/watch/prepare.py DIR --out OUT (see card.md)."""

from pathlib import Path

from cpc.config.options import prepare_from_command_line
from cpc.data.images.arrays import load_array
from cpc.data.signals.corpora import (
    SignalArrays,
    describe,
    read_published_smartwatch,
    smartwatch_arrays,
    write_recordings,
)


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
    arrays = _read_packed(packed) if packed.is_file() else read_published_smartwatch(root)
    return write_recordings(folder / "watch_recordings.npz" if out is None else out, arrays)


def _read_packed(path: Path) -> SignalArrays:
    return smartwatch_arrays(*(load_array(path, name) for name in ("x", "length", "label", "subject", "side")))


if __name__ == "__main__":
    prepare_from_command_line(prepare_watch, describe, published={"train": 140})
