"""Downsampling that keeps the lowest and the highest value of every bucket and the gaps; smoothing."""

import numpy as np


def extreme_indices(values: np.ndarray, max_points: int) -> np.ndarray:
    """Return sorted indices of values `[n]`: the first, the last, and per bucket the lowest, highest, first NaN.

    Buckets have equal numbers of points. If `max_points` is about four times the width in pixels, a bucket is narrower
    than a pixel. Unlike averages, extremes keep spikes and the gaps where a value is not finite.
    """
    assert max_points >= 3, "a bucket keeps up to three points"
    num = len(values)
    if num <= max_points:
        return np.arange(num)
    width = -(-num // (max_points // 3))
    padding = np.full(-num % width, values[-1], values.dtype)
    padded = np.concatenate([values, padding]).reshape(-1, width)
    starts = np.arange(len(padded)) * width
    is_gap = ~np.isfinite(padded)
    has_value, has_gap = ~is_gap.all(1), is_gap.any(1)
    lowest = starts + np.where(is_gap, np.inf, padded).argmin(1)
    highest = starts + np.where(is_gap, -np.inf, padded).argmax(1)
    gaps = starts + is_gap.argmax(1)
    # argmin and argmax return the first of equal values, so never an index in the padding (copies of the last value).
    return np.unique(np.concatenate([lowest[has_value], highest[has_value], gaps[has_gap], [0, num - 1]]))


def moving_mean(values: np.ndarray, width: int) -> np.ndarray:
    """Return, for values `[n]` or `[n, K]`, the mean of `width` records around each record; fewer at the ends.

    A NaN stays NaN, and the means of its neighbours leave it out.
    """
    assert width % 2 == 1, "the width must be odd"
    if width == 1 or not len(values):
        return values
    is_finite = np.isfinite(values)
    before = [(1, 0), *[(0, 0)] * (values.ndim - 1)]
    sums = np.pad(np.cumsum(np.where(is_finite, values, 0), 0, dtype=np.float64), before)
    counts = np.pad(np.cumsum(is_finite, 0), before)
    ends = np.minimum(np.arange(len(values)) + width // 2 + 1, len(values))
    starts = np.maximum(np.arange(len(values)) - width // 2, 0)
    num = counts[ends] - counts[starts]
    means = np.divide(sums[ends] - sums[starts], num, out=np.full(values.shape, np.nan), where=is_finite & (num > 0))
    return means.astype(values.dtype)
