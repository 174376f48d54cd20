"""Statistics of the channels of recordings, which standardise the input of an encoder. C channels."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float64

FLOOR_QUANTILE = 0.1
_SAMPLES_AT_ONCE = 2**18
_ROUNDING = 1e-6  # of the deviation: what float32 leaves of a constant


class SignalStatistics(NamedTuple):
    """Statistics of every channel, in the units of the signal.

    Attributes:
        floor: a low quantile of the deviations within short blocks: the deviation of a channel at rest.
    """

    mean: Float64[np.ndarray, " C"]
    std: Float64[np.ndarray, " C"]
    floor: Float64[np.ndarray, " C"]


def signal_statistics(recordings: Iterable[Float[np.ndarray, "_ C"]], block_samples: int) -> SignalStatistics:
    """Return the statistics of recordings; NaN are left out.

    Blocks of `block_samples` samples give the local deviations; a recording that is shorter is one block. The floor is
    their quantile `FLOOR_QUANTILE`, over blocks that are not constant and at least half known.
    """
    # Sums of differences from a first guess of the mean: a large offset does not cancel the digits of the deviation.
    guess, count, total, squares = None, 0.0, 0.0, 0.0
    deviations: list[np.ndarray] = []
    for signal in _pieces(recordings, block_samples):
        known = ~np.isnan(signal)
        if guess is None:
            guess = np.nan_to_num(np.where(known, signal, 0).sum(0, np.float64) / np.maximum(known.sum(0), 1))
        centred = np.where(known, signal - guess, 0)
        count, total, squares = count + known.sum(0), total + centred.sum(0), squares + np.square(centred).sum(0)
        length = min(block_samples, len(signal))
        num_blocks = len(signal) // length
        shape = (num_blocks, length, -1)
        blocks, known_blocks = (x[: num_blocks * length].reshape(shape) for x in (centred, known))
        num_known = np.maximum(known_blocks.sum(1), 1)
        means = blocks.sum(1) / num_known
        local = np.sqrt((np.where(known_blocks, blocks - means[:, None], 0) ** 2).sum(1) / num_known)
        deviations.append(np.where(num_known >= block_samples / 2, local, np.nan))
    if guess is None or not np.all(count):
        missing = "every channel" if guess is None else f"channel {np.flatnonzero(np.asarray(count) == 0)[0]}"
        raise ValueError(f"{missing} has no known sample in the training split, so it cannot be standardised")
    mean = total / count
    std = np.sqrt(np.maximum(squares / count - mean**2, 0))
    local = np.concatenate(deviations)
    floor = [_floor(channel, deviation) for channel, deviation in zip(local.T, std, strict=True)]
    return SignalStatistics(guess + mean, std, np.array(floor))


def _floor(deviations: Float64[np.ndarray, " n"], std: float) -> float:
    """Return the quantile of the deviations of blocks; 0 if there is none above rounding."""
    moving = deviations[deviations > _ROUNDING * std]
    return float(np.quantile(moving, FLOOR_QUANTILE)) if len(moving) else 0.0


def _pieces(recordings: Iterable[np.ndarray], block_samples: int) -> Iterator[np.ndarray]:
    """Yield the recordings in float64, long ones in pieces of whole blocks."""
    step = max(1, _SAMPLES_AT_ONCE // block_samples) * block_samples
    for recording in recordings:
        for start in range(0, len(recording), step):
            yield np.asarray(recording[start : start + step], np.float64)
