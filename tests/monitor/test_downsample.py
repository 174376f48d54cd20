"""Fewer points, the same picture; against loops."""

import math

import numpy as np
import pytest

from cpc.monitor.figure import extreme_indices, moving_mean


@pytest.mark.parametrize("num", [1, 10, 99, 100, 101, 1000, 12345])
def test_extremes_ends_and_gaps_survive(num: int) -> None:
    rng = np.random.default_rng(num)
    values = rng.standard_normal(num).astype(np.float32)
    if num > 100:
        values[num // 2] = 50
        values[num // 3] = -50
        values[num // 4] = math.nan
        values[num // 5] = math.inf
    kept = extreme_indices(values, 99)
    assert (np.diff(kept) > 0).all()
    assert (kept[0], kept[-1]) == (0, num - 1)
    assert len(kept) <= max(99 + 2, 1)
    finite = values[np.isfinite(values)]
    assert np.nanmax(values[kept][np.isfinite(values[kept])]) == finite.max()
    assert np.nanmin(values[kept][np.isfinite(values[kept])]) == finite.min()
    assert np.isfinite(values[kept]).all() == np.isfinite(values).all()


def test_every_bucket_keeps_its_lowest_and_highest() -> None:
    values = np.random.default_rng(0).standard_normal(1000)
    kept, width = set(extreme_indices(values, 30).tolist()), 100
    for start in range(0, 1000, width):
        bucket = values[start : start + width]
        assert {start + int(bucket.argmin()), start + int(bucket.argmax())} <= kept


def test_gaps_and_few_points_stay_and_too_few_are_refused() -> None:
    values = np.ones(300)
    values[100:200] = math.nan
    assert 100 in extreme_indices(values, 9)
    assert extreme_indices(np.arange(5.0), 5).tolist() == [0, 1, 2, 3, 4]
    assert extreme_indices(np.zeros(0), 5).tolist() == []
    with pytest.raises(AssertionError, match="a bucket keeps up to three points"):
        extreme_indices(np.arange(5.0), 2)


@pytest.mark.parametrize("width", [1, 3, 7, 51])
@pytest.mark.parametrize("shape", [(30,), (30, 4), (0,)])
def test_moving_mean_is_that_of_a_loop(width: int, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).standard_normal(shape)
    values[values > 1.2] = math.nan
    expected = np.full(shape, math.nan)
    for index in np.ndindex(shape):
        start = max(0, index[0] - width // 2)
        window = values[(slice(start, index[0] + width // 2 + 1), *index[1:])]
        if not math.isnan(values[index]):
            expected[index] = window[np.isfinite(window)].mean()
    np.testing.assert_allclose(moving_mean(values, width), expected, rtol=1e-10)
