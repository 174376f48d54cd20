import pickle
from pathlib import Path

import numpy as np
import pytest

from cpc.data.recordings.windows import signal_statistics
from cpc.data.signals.pack import pack_signals
from cpc.data.signals.recordings import read_recordings

SHARED = Path(__file__).parents[3].parent / "shared" / "data"
RNG = np.random.default_rng(0)


def shared(name: str) -> Path:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"no {name} beside the checkout (../shared/data/{name})")
    return path


def test_hapt(tmp_path: Path) -> None:
    path = shared("hapt/hapt.npz")
    raw = np.load(path)
    recordings = read_recordings(path, sample_rate_hz=50, valid_share=0.2, test_share=0.2)
    assert len(recordings) == 42
    assert recordings.groups == [str(user) for user in raw["user"]]
    assert recordings.channels == ["0", "1", "2", "3", "4", "5"]
    splits = dict(zip(recordings.groups, recordings.splits, strict=True))
    assert [splits[group] for group in recordings.groups] == recordings.splits  # people are not divided
    assert set(recordings.splits) == {"train", "valid", "test"}
    packed = pack_signals(recordings, tmp_path, progress=False)
    assert packed.lengths.tolist() == raw["length"].tolist()
    ends = np.cumsum(raw["length"])
    for row in (0, 17, 41):
        own = raw["x"][ends[row] - raw["length"][row] : ends[row]]
        np.testing.assert_array_equal(packed.read(row, 0, 10**9), own)
        np.testing.assert_array_equal(packed.read(row, 100, 50), own[100:150])
        own_labels = raw["label"][ends[row] - raw["length"][row] : ends[row]]
        codes = pickle.loads(pickle.dumps(recordings)).labels["label"].codes(row, 300, 4000)
        np.testing.assert_array_equal(np.where(codes < 0, -1, codes + 1), own_labels[300:4300])
    assert recordings.labels["label"].classes == [str(label) for label in range(1, 13)]
    mean, std, _ = signal_statistics([packed.read(row) for row in range(42)], 50)
    np.testing.assert_allclose(mean, raw["x"].mean(axis=0, dtype=np.float64), rtol=1e-9)
    np.testing.assert_allclose(std, raw["x"].std(axis=0, dtype=np.float64), rtol=1e-9)


def test_watch(tmp_path: Path) -> None:
    path = shared("watch/watch.npz")
    raw = np.load(path)
    recordings = read_recordings(path, sample_rate_hz=50, channels=[3, "0"])
    assert recordings.splits == ["train"] * 140
    assert recordings.groups == [str(subject) for subject in raw["subject"]]
    assert sorted(recordings.labels) == ["label", "side"]
    packed = pack_signals(recordings, tmp_path, progress=False)
    ends = np.cumsum(raw["length"])
    for row in (3, 139):
        own = raw["x"][ends[row] - raw["length"][row] : ends[row]]
        np.testing.assert_array_equal(packed.read(row, 0, 10**9), own[:, [3, 0]])
        assert recordings.labels["label"].codes(row, 5, 3).tolist() == [raw["label"][row]] * 3
