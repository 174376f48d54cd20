"""Rotations of sensors, against the properties that define a rotation, and where they are applied."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from opened import opened

from cpc import CPC
from cpc.contexts import GRU
from cpc.data import Signals
from cpc.data.signals.augmentation import SignalAugmentation
from cpc.encoders import SignalEncoder
from cpc.predictors import Bilinear
from cpc.probes.supervised import SupervisedProtocol

RNG = np.random.default_rng(0)
X = RNG.normal(size=(50, 6)).astype(np.float32)


def turned(x: np.ndarray, degrees: float, key: int) -> np.ndarray:
    return SignalAugmentation(turn_degrees=degrees)(x, key)


def model_of(channels: int, rate_hz: float) -> CPC:
    encoder = SignalEncoder(channels, 4, rate_hz, kernels=(4,), strides=(4,), front="raw")
    return CPC(encoder, GRU(4), Bilinear(2))


def test_a_window_is_turned_by_one_rotation_of_at_most_the_angle() -> None:
    angles = []
    for key in range(300):
        matrix = turned(np.tile(np.eye(3), 2), 40.0, key)  # rows are the turned axes
        first, second = matrix[:, :3], matrix[:, 3:]
        np.testing.assert_array_equal(first, second)
        np.testing.assert_allclose(first @ first.T, np.eye(3), atol=1e-12)
        assert np.linalg.det(first) == pytest.approx(1)
        angles.append(np.degrees(np.arccos((np.trace(first) - 1) / 2)))
        np.testing.assert_allclose(turned(X, 40.0, key)[:, 3:], X[:, 3:] @ first, atol=1e-5)
    np.testing.assert_allclose(np.quantile(angles, [0.25, 0.5, 0.75, 1]), [10, 20, 30, 40], atol=4)
    assert max(angles) <= 40


def test_the_key_decides_and_missing_axes_stay_missing() -> None:
    np.testing.assert_array_equal(turned(X, 30.0, 7), turned(X.copy(), 30.0, 7))
    assert np.abs(turned(X, 30.0, 7) - turned(X, 30.0, 8)).max() > 0.1
    x = X.copy()
    x[3, 1] = np.nan
    found = turned(x, 30.0, 7)
    assert found.dtype == np.float32
    assert np.isnan(found[3, :3]).all()
    np.testing.assert_allclose(np.delete(found, 3, 0), np.delete(turned(X, 30.0, 7), 3, 0), rtol=1e-6)
    np.testing.assert_array_equal(found[3, 3:], turned(X, 30.0, 7)[3, 3:])


def test_training_and_networks_with_labels_read_turned_windows(tmp_path: Path) -> None:
    path = tmp_path / "signals.npz"
    x = RNG.normal(size=(8, 80, 3)).astype(np.float32)
    np.savez(path, x=x, label=np.arange(8) % 2, group=np.arange(8), split=["train"] * 6 + ["valid"] * 2)
    data = Signals(source=str(path), sample_rate_hz=10.0, window_seconds=8.0, batch_size=6)
    data.augmentation = SignalAugmentation(turn_degrees=90.0)
    model = model_of(3, 10.0)
    data.check(model)
    corpus = opened(data, model.encoder)
    training, held_out = data.training(corpus, model), data.held_out(corpus, model)
    batch = training.dataset.__getitems__(training.batches.batch(0))
    plain = torch.from_numpy(x[batch.sequence_id])
    assert (batch.x - plain).abs().amax((1, 2)).min() > 0.01
    torch.testing.assert_close(batch.x.norm(dim=2), plain.norm(dim=2))
    assert batch.target is None
    (valid,) = held_out.batches("mixed")
    np.testing.assert_array_equal(valid.x, x[valid.sequence_id])
    for options in ({}, {"hop_seconds": 8.0}):  # recordings, and windows
        probed = replace(data, **options)
        probe_data = probed.probe_data(model.encoder, opened(probed, model.encoder))
        labels = probe_data.labels("label", np.arange(6))
        codes = lambda row, times, start, num: labels.codes(row, {"0": 0, "1": 1}, times, start, num)  # noqa: B023, E731
        protocols = [SupervisedProtocol(window_latents=20, augment=augment) for augment in (True, False)]
        shown, plain = (next(probe_data.batches(np.arange(6), codes, model, each)) for each in protocols)
        assert (plain.x[:, None] == torch.from_numpy(x[:6])).all((2, 3)).any(1).all()
        norms = torch.from_numpy(x[:6]).norm(dim=2)
        nearest = (shown.x.norm(dim=2)[:, None] - norms).abs().amax(2).min(1)
        assert nearest.values.max() < 1e-5
        assert (shown.x - torch.from_numpy(x[nearest.indices])).abs().amax((1, 2)).min() > 0.01


@pytest.mark.parametrize(
    ("degrees", "channels", "message"),
    [
        (0.0, 3, "`augmentation.turn_degrees`=0.0 must be positive and at most 180"),
        (200.0, 3, "`augmentation.turn_degrees`=200.0 must be positive and at most 180"),
        (30.0, 4, "turns sensors of 3 channels, but there are 4 channels"),
    ],
)
def test_wrong_options(degrees: float, channels: int, message: str) -> None:
    data = Signals(source="x.npz", window_seconds=80.0, augmentation=SignalAugmentation(turn_degrees=degrees))
    with pytest.raises(ValueError, match=re.escape(message)):
        data.check(model_of(channels, 1.0))
