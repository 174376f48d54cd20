"""Write hapt.npz, a source of `cpc.data.Signals`: python datasets/hapt/prepare.py DIR --out OUT (see card.md)."""

import re
from pathlib import Path

import numpy as np

from cpc.config.options import prepare_from_command_line
from cpc.data.images.arrays import load_array
from cpc.data.signals.corpora import SignalArrays, describe, write_recordings

CLASSES = (
    "walking",
    "walking upstairs",
    "walking downstairs",
    "sitting",
    "standing",
    "laying",
    "stand to sit",
    "sit to stand",
    "sit to lie",
    "lie to sit",
    "stand to lie",
    "lie to stand",
)
NUM_ACTIVITIES = 6  # the classes that are not transitions
CHANNELS = ("acc_x", "acc_y", "acc_z", "gyro_x", "gyro_y", "gyro_z")
UNITS = (*["g"] * 3, *["rad/s"] * 3)
TEST_PEOPLE = (2, 4, 9, 10, 12, 13, 18, 20, 24)  # the test part of UCI-HAR
RATE_HZ = 50.0


def prepare_hapt(root: Path, out: Path | None = None) -> tuple[Path, SignalArrays]:
    """Write the raw recordings of HAPT to one npz file, with labels of each sample.

    `label` has all 12 classes, `activity` the six that are not transitions.

    Args:
        root: folder of the published files, `RawData/acc_exp*_user*.txt`, `RawData/gyro_exp*_user*.txt` and
            `RawData/labels.txt` or the same without `RawData`; or of `hapt.npz` with `x`, `label`, `length` and `user`.
        out: path of the npz file; ROOT/hapt_recordings.npz if not given.

    Raises:
        ValueError: if files are missing or damaged, or a label lies outside its recording.
    """
    packed = root / "hapt.npz"
    arrays = _read_packed(packed) if packed.is_file() else _read_published(root)
    return write_recordings(root / "hapt_recordings.npz" if out is None else out, arrays)


def _read_packed(path: Path) -> SignalArrays:
    x, label, length, user = (load_array(path, name) for name in ("x", "label", "length", "user"))
    return _as_arrays(x, np.where(label > 0, label - 1, -1), length, user)


def _read_published(root: Path) -> SignalArrays:
    folder = root / "RawData" if (root / "RawData").is_dir() else root
    named = {path: re.fullmatch(r"acc_exp(\d+)_user(\d+)\.txt", path.name) for path in sorted(folder.glob("acc_*.txt"))}
    experiments = {path: (int(match[1]), int(match[2])) for path, match in named.items() if match}
    labels = folder / "labels.txt"
    if not experiments or not labels.is_file():
        raise ValueError(
            f"{root} has neither hapt.npz nor the published files RawData/acc_exp01_user01.txt, ... and "
            "RawData/labels.txt: unpack the archive of UCI there"
        )
    rows = _read_numbers(labels, 5).astype(np.int64)
    signals, codes = [], []
    for path, (experiment, user) in experiments.items():
        signal = np.concatenate(
            [_read_numbers(path, 3), _read_numbers(path.with_name(path.name.replace("acc_", "gyro_", 1)), 3)], axis=1
        )
        code = np.full(len(signal), -1, np.int8)
        for _, _, activity, first, last in rows[(rows[:, 0] == experiment) & (rows[:, 1] == user)].tolist():
            if not (1 <= activity <= len(CLASSES) and 1 <= first <= last <= len(signal)):
                raise ValueError(
                    f"{labels}: experiment {experiment} has activity {activity} from sample {first} to {last}, but "
                    f"{path.name} has {len(signal)} samples, and activities are 1 to {len(CLASSES)}"
                )
            code[first - 1 : last] = activity - 1  # published numbers count from 1 and include the last sample
        signals.append(signal.astype(np.float32))
        codes.append(code)
    length = np.array([len(signal) for signal in signals])
    users = np.array([user for _, user in experiments.values()])
    return _as_arrays(np.concatenate(signals), np.concatenate(codes), length, users)


def _read_numbers(path: Path, num_columns: int) -> np.ndarray:
    try:
        numbers = np.loadtxt(path, ndmin=2)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as numbers: {error}") from error
    if numbers.shape[1] != num_columns:
        raise ValueError(f"{path} has {numbers.shape[1]} columns, but must have {num_columns}")
    return numbers


def _as_arrays(x: np.ndarray, label: np.ndarray, length: np.ndarray, user: np.ndarray) -> SignalArrays:
    is_test = np.isin(user, TEST_PEOPLE)
    split = ["test" if test else "train" for test in is_test.tolist()] if is_test.any() else None
    activities = np.array([*CLASSES[:NUM_ACTIVITIES], ""], "S")  # bytes: a quarter of the memory of strings
    activity = activities[np.where((label >= 0) & (label < NUM_ACTIVITIES), label, NUM_ACTIVITIES)]
    labels = {"activity": activity}
    return SignalArrays(x, length, user, label, CLASSES, CHANNELS, RATE_HZ, split, labels, UNITS)


if __name__ == "__main__":
    prepare_from_command_line(prepare_hapt, describe)
