"""Hand-made features of windows and of whole recordings, against `hand_features` of slices of the arrays."""

from pathlib import Path

import numpy as np
import pytest

from cpc.data import Signals
from cpc.data.signals.features import hand_features
from cpc.data.signals.probe_data import SignalProbeData
from cpc.encoders import SignalEncoder
from cpc.probes import Comparison, Extraction, FeatureStore, Task

RATE_HZ, WINDOW = 20.0, 40
LENGTHS = [400, 95, 30, 40, 300, 61, 200, 59]


@pytest.fixture
def arrays() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    recordings = [rng.normal(size=(length, 2)).astype(np.float32) * (1 + row % 2) for row, length in enumerate(LENGTHS)]
    recordings[0][100:110, 1] = np.nan
    return recordings


def probe_data(arrays: list[np.ndarray], folder: Path, **options: float) -> SignalProbeData:
    group, x = np.arange(len(LENGTHS)) // 2, np.concatenate(arrays)
    label, phase = np.arange(len(LENGTHS)) % 2, np.arange(len(x)) % 3
    np.savez(folder / "x.npz", x=x, length=LENGTHS, group=group, label=label, phase=phase)
    options |= {"sample_rate_hz": RATE_HZ, "valid_share": 0.0, "window_seconds": 2.0}
    data = Signals(source=str(folder / "x.npz"), missing="mask", **options)
    encoder = SignalEncoder(2, 4, RATE_HZ)
    return data.probe_data(encoder, data.open(encoder))


def test_a_recording_has_a_vector_for_each_window_by_half_windows(arrays: list[np.ndarray], tmp_path: Path) -> None:
    data = probe_data(arrays, tmp_path)
    rows = np.arange(len(LENGTHS))
    store = FeatureStore.extract(data.feature_extractor(["hand"]), rows, data.name, Extraction(progress=False))
    mean = np.nanmean(np.concatenate(arrays), 0)
    for row, array in enumerate(arrays):
        filled = np.where(np.isnan(array), mean, array)
        length = min(WINDOW, len(array))
        windows = [filled[start : start + length] for start in range(0, len(array) - length + 1, WINDOW // 2)]
        expected = hand_features(np.stack(windows).astype(np.float32), RATE_HZ)
        np.testing.assert_allclose(store.values["hand"][store.span(row)], expected, rtol=1e-5, atol=1e-6)
    task = Task("label", data, pool="mean_std", folds="group", num_folds=4)
    (examples, *_) = [fold.examples("train", store, "hand") for fold in task.folds]
    assert examples.values.shape == (6, 2 * store.values["hand"].shape[1])


def test_the_vector_of_a_window_is_that_of_its_samples(arrays: list[np.ndarray], tmp_path: Path) -> None:
    """`hand_past` adds the features of the window that ends where a window begins, or of the window itself."""
    data = probe_data(arrays, tmp_path, hop_seconds=1.0)
    rows = np.flatnonzero(data.recording == 1)
    now = hand_features(np.stack([arrays[1][start : start + WINDOW] for start in (0, 20, 40)]), RATE_HZ)
    for name, expected in (("hand", now), ("hand_past", np.concatenate([now, now[[0, 1, 0]]], 1))):
        store = FeatureStore.extract(data.feature_extractor([name]), rows, data.name, Extraction(progress=False))
        np.testing.assert_allclose(store.values[name], expected, rtol=1e-5, atol=1e-6)


def test_features_that_recordings_lack_are_refused(arrays: list[np.ndarray], tmp_path: Path) -> None:
    data = probe_data(arrays, tmp_path)
    with pytest.raises(ValueError, match="`hand_past` are features of windows: set `hop_seconds`"):
        data.feature_extractor(["hand_past"])
    comparison = Comparison(data, ["c"], ["hand"])
    comparison.check(Task("label", data, folds="group", num_folds=2))
    with pytest.raises(ValueError, match="hand has one vector for a whole recording, but task 'phase' labels"):
        comparison.check(Task("phase", data, folds="group", num_folds=2))
