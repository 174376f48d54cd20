"""MiniRocket of aeon, on windows as this library lays them out."""

import pickle
import sys

import numpy as np
import pytest

from cpc.data.signals.minirocket import fit_minirocket


@pytest.fixture
def _needs_aeon() -> None:
    pytest.importorskip("aeon", reason="the extra `signals` is not installed", exc_type=ImportError)


def windows_of(seed: int, n: int = 12, T: int = 40, C: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, T, C)).astype(np.float32)


@pytest.mark.usefixtures("_needs_aeon")
def test_features_are_shares_and_depend_on_the_seed_only() -> None:
    training, other = windows_of(0), windows_of(1, n=5)
    transform = fit_minirocket(training, num_features=500, seed=3)
    features = transform(other)
    assert features.shape == (5, 420), "rounded down to a multiple of 84"
    assert features.dtype == np.float32
    assert features.min() >= 0
    assert features.max() <= 1
    np.testing.assert_array_equal(fit_minirocket(training, num_features=500, seed=3)(other), features)
    np.testing.assert_array_equal(transform(other[2:3]), features[2:3])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(transform))(other), features)
    assert not np.array_equal(fit_minirocket(training, num_features=500, seed=4)(other), features)


@pytest.mark.usefixtures("_needs_aeon")
def test_numpys_random_state_stays_as_it_was() -> None:
    np.random.seed(5)
    expected = np.random.random()
    np.random.seed(5)
    fit_minirocket(windows_of(0), num_features=84)
    assert np.random.random() == expected


@pytest.mark.usefixtures("_needs_aeon")
def test_thresholds_are_quantiles_of_training_convolutions() -> None:
    """Fitted on one window, a kernel's threshold is a quantile q of that window's own values: the feature is 1 - q."""
    T = 400
    window = windows_of(2, n=1, T=T, C=1)
    features = fit_minirocket(window, num_features=84)(window)[0]
    golden = (np.sqrt(5) + 1) / 2
    expected = 1 - np.arange(1, 85) * golden % 1
    # Every second kernel leaves out the 4 samples at each end; quantiles are of all samples.
    np.testing.assert_allclose(features, expected, atol=10 / T)


@pytest.mark.usefixtures("_needs_aeon")
def test_kernels_are_convolutions_along_time() -> None:
    """Kernels sum to 0 and lie along time: a constant added to the inner samples of a channel changes only the ends."""
    training = windows_of(6, n=30, T=200, C=2)
    transform = fit_minirocket(training, num_features=84)
    features, moved = transform(training), transform(training + np.array([5.0, -2.0], np.float32))
    is_inner = np.arange(84) % 2 == 1  # without padding, for the only dilation, 1
    assert features.shape[1] == 84
    same = np.isclose(features, moved, atol=2 / 200).all(axis=0)
    assert same[is_inner].all()
    assert not same[~is_inner].all()


@pytest.mark.usefixtures("_needs_aeon")
def test_frequencies_are_told_apart_at_any_phase() -> None:
    random = np.random.default_rng(7)
    label = np.arange(200) % 2
    time = np.arange(64)[:, None]
    phases = random.uniform(0, 2 * np.pi, (200, 1, 1))
    cycles = np.where(label == 0, 4, 6)[:, None, None]
    windows = np.sin(2 * np.pi * cycles * time / 64 + phases) + random.normal(0, 0.5, (200, 64, 1))
    train, test = map(fit_minirocket(windows[:100], num_features=840), (windows[:100], windows[100:]))
    means = [train[label[:100] == code].mean(axis=0) for code in (0, 1)]
    nearer = ((test - means[0]) ** 2).sum(axis=1) > ((test - means[1]) ** 2).sum(axis=1)
    assert (nearer == label[100:]).mean() > 0.95


@pytest.mark.usefixtures("_needs_aeon")
def test_refusals() -> None:
    transform = fit_minirocket(windows_of(0), num_features=84)
    with pytest.raises(ValueError, match=r"windows are \[12, 40, 2\].*fitted on \[12, 40, 3\]"):
        transform(windows_of(0, C=2))
    with pytest.raises(ValueError, match="`num_features` is 83"):
        fit_minirocket(windows_of(0), num_features=83)
    with pytest.raises(ValueError, match="at least one window and 9 samples"):
        fit_minirocket(windows_of(0, T=8))
    with pytest.raises(ValueError, match="at least one window"):
        fit_minirocket(windows_of(0, n=0))
    with pytest.raises(ValueError, match=r"must be \[n, T, C\]"):
        fit_minirocket(windows_of(0)[0])
    damaged = windows_of(0)
    damaged[3, 4, 1] = np.nan
    with pytest.raises(ValueError, match="NaN or infinite"):
        transform(damaged)


def test_without_aeon_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "aeon"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "aeon", None)
    with pytest.raises(ValueError, match=r"MiniRocket needs the package aeon.*pip install aeon"):
        fit_minirocket(windows_of(0))
