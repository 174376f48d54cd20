"""Hand-made features against slow loops, scipy and closed forms; published protocols on real recordings."""

import math
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses
from scipy import signal

from cpc.data.signals.features import NUM_BANDS, band_edges_hz, band_powers, hand_feature_names, hand_features

RATE_HZ = 50.0


def named(windows: np.ndarray, rate_hz: float = RATE_HZ) -> dict[str, np.ndarray]:
    """The features by name; channels are called a, b, c, ..."""
    names = hand_feature_names("abcdefgh"[: windows.shape[2]], rate_hz)
    features = hand_features(windows, rate_hz)
    assert features.dtype == np.float32
    assert features.shape == (len(windows), len(names))
    assert len(set(names)) == len(names) == windows.shape[2] * (10 + NUM_BANDS + (windows.shape[2] - 1) / 2)
    return dict(zip(names, features.T, strict=True))


def slow_features(window: np.ndarray, rate_hz: float) -> dict[str, float]:
    """One window, by loops over channels, samples and frequencies."""
    T, C = window.shape
    columns = {"abcdefgh"[i]: window[:, i].astype(float).tolist() for i in range(C)}
    found: dict[str, float] = {}
    for name, x in columns.items():
        mean = math.fsum(x) / T
        found[f"mean of {name}"] = mean
        found[f"deviation of {name}"] = math.sqrt(math.fsum((value - mean) ** 2 for value in x) / T)
        for quantile in (0.05, 0.25, 0.5, 0.75, 0.95):
            found[f"quantile {quantile} of {name}"] = float(np.quantile(x, quantile))
        found[f"range of {name}"] = max(x) - min(x)
        pairs = list(pairwise(x))
        found[f"crossings of {name}"] = sum((u > mean) != (v > mean) for u, v in pairs) / (T - 1) * rate_hz
        found[f"slope of {name}"] = math.fsum(abs(v - u) for u, v in pairs) / (T - 1) * rate_hz
        edges = band_edges_hz(rate_hz)
        # The square of scipy's cosine window is the Hann window without zeros at its ends.
        taper = signal.windows.cosine(T) ** 2
        frequencies, density = signal.periodogram(np.array(x) - mean, rate_hz, taper, detrend=False, scaling="density")
        for low, high in pairwise(edges):
            power = sum(p for f, p in zip(frequencies, density, strict=True) if low < f <= high) * rate_hz / T
            found[f"{low:.4g}-{high:.4g} Hz of {name}"] = power ** (1 / 8)
    for first, second in combinations(columns, 2):
        found[f"correlation of {first} and {second}"] = float(np.corrcoef(columns[first], columns[second])[0, 1])
    return found


@pytest.mark.parametrize(("num_samples", "num_channels", "rate_hz"), [(64, 3, 64.0), (100, 2, 50.0), (37, 1, 512.0)])
def test_every_feature_equals_a_slow_loop(num_samples: int, num_channels: int, rate_hz: float) -> None:
    random = np.random.default_rng(num_samples)
    windows = random.normal(3, 2, (5, num_samples, num_channels)).cumsum(axis=1)
    fast = named(windows, rate_hz)
    for row, window in enumerate(windows):
        slow = slow_features(window, rate_hz)
        assert slow.keys() == fast.keys()
        for name, value in slow.items():
            assert fast[name][row] == pytest.approx(value, rel=2e-5, abs=2e-6), name


@pytest.mark.parametrize(("cycles", "band"), [(2, 0), (3, 1), (4, 1), (5, 2), (20, 4), (33, 5), (60, 5)])
def test_the_power_of_a_sine_is_half_its_squared_amplitude(cycles: int, band: int) -> None:
    """A frequency at the edge between bands is of the lower one."""
    T, amplitude = 128, 3.0
    assert band_edges_hz(T) == [0, 2, 4, 8, 16, 32, 64]
    x = amplitude * np.sin(2 * np.pi * cycles * np.arange(T) / T + 0.4)
    powers = band_powers(x[None, :, None])[0, :, 0]
    assert powers.sum() == pytest.approx(amplitude**2 / 2)
    if cycles not in (2, 4, 3, 5, 33):  # away from the edges between bands, all of it lies in one
        assert powers[band] == pytest.approx(amplitude**2 / 2)
    else:  # a Hann window leaves two thirds at the sine's frequency and a sixth at each frequency beside it
        assert powers[band] >= amplitude**2 / 2 * 2 / 3 - 1e-9
    name = hand_feature_names(["a"], RATE_HZ)[10 + band]
    assert named(x[None, :, None])[name][0] == pytest.approx(powers[band] ** 0.125, rel=1e-6)


def test_a_change_of_units_scales_and_a_shift_moves() -> None:
    windows = np.random.default_rng(1).normal(size=(4, 50, 2))
    plain, scaled, shifted = named(windows), named(windows * 256), named(windows + 1000)
    for name, values in plain.items():
        # A band's power grows with the square of the unit, 2 ** 16, of which the feature is the eighth root.
        factor = 1.0 if name.startswith(("correlation", "crossings")) else 4.0 if "Hz" in name else 256.0
        assert scaled[name] == pytest.approx(values * factor, rel=1e-5), name
        moved = 1000.0 if name.startswith(("mean", "quantile")) else 0.0
        assert shifted[name] == pytest.approx(values + moved, rel=1e-4), name


@pytest.mark.parametrize("num_samples", [1, 2, 3, 17])
@pytest.mark.parametrize("value", [0.0, 0.1, -1e-30, 1e30, 3e38])
def test_constant_channels_are_finite_and_have_no_power(num_samples: int, value: float) -> None:
    windows = np.full((3, num_samples, 2), value, np.float32)
    windows[1:, :, 1] = np.linspace(0, 1, num_samples)
    features = named(windows)
    for name, values in features.items():
        assert np.isfinite(values).all(), name
        if name.endswith("of a") and not name.startswith(("mean", "quantile")):
            assert not values.any(), name
    assert not features["correlation of a and b"].any()
    assert features["mean of a"] == pytest.approx(windows[:, 0, 0])


@given(
    st.integers(1, 12),
    st.integers(1, 3),
    st.integers(0, 2**32 - 1),
    st.sampled_from([1e-38, 1e-3, 1.0, 1e20, 3e38]),
    st.sampled_from([0.0, 0.3, 1.0]),
)
def test_features_of_any_window_are_finite(T: int, C: int, seed: int, scale: float, missing_share: float) -> None:
    random = np.random.default_rng(seed)
    windows = (random.uniform(-1, 1, (4, T, C)) * scale).astype(np.float32)
    windows[random.random(windows.shape) < missing_share] = np.nan
    features = named(windows)
    assert all(np.isfinite(values).all() for values in features.values())
    for name, values in features.items():
        if name.startswith("correlation"):
            assert np.abs(values).max() <= 1 + 1e-6


def test_missing_samples_count_as_the_mean_of_the_others() -> None:
    random = np.random.default_rng(2)
    windows = random.normal(5, 1, (3, 40, 2))
    filled = windows.copy()
    windows[0, 3:9, 1] = np.nan
    filled[0, 3:9, 1] = np.nanmean(windows[0, :, 1])
    windows[2, :, 0] = np.nan
    filled[2, :, 0] = 0
    np.testing.assert_allclose(hand_features(windows, RATE_HZ), hand_features(filled, RATE_HZ), rtol=1e-5, atol=1e-5)
    assert np.isnan(windows[2, :, 0]).all(), "the windows of the caller stay as they are"


def test_windows_do_not_depend_on_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    windows = np.random.default_rng(3).normal(size=(23, 30, 2)).astype(np.float32)
    together = hand_features(windows, RATE_HZ)
    for step in (1, 60, 7 * 60):
        monkeypatch.setattr("cpc.data.signals.features._VALUES_AT_ONCE", step)
        np.testing.assert_allclose(hand_features(windows, RATE_HZ), together, rtol=1e-6, atol=1e-6)
    assert hand_features(windows[:0], RATE_HZ).shape == (0, together.shape[1])
    integers = (windows * 100).astype(np.int16)
    np.testing.assert_array_equal(hand_features(integers, RATE_HZ), hand_features(integers.astype(float), RATE_HZ))


@pytest.mark.parametrize("shape", [(3, 4), (3, 0, 2), (3, 4, 0), (2, 3, 4, 5)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    refuses(r"windows are \[.*\], but must be \[n, T, C\]", hand_features, np.zeros(shape), RATE_HZ)
    refuses("infinite", hand_features, np.full((2, 8, 1), -np.inf), RATE_HZ)
