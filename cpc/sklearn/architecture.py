"""The network of a `CPCTransformer` by its options and the lengths of its recordings.

n recordings.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from cpc.contexts import GRU
from cpc.encoders import SignalEncoder
from cpc.losses import Contrastive
from cpc.model import CPC
from cpc.predictors import Bilinear

_LONGEST_WINDOW_LATENTS = 128
_GEOMETRIES = [((8, 4), (4, 2)), ((8,), (4,)), ((4,), (2,)), ((1,), (1,))]  # kernels and strides, from coarse to fine
_FEWEST_LATENTS = 12  # minimum number of latents of a recording of median length
# Batches of one group that its windows must fill: the last batch is filled by windows drawn again, some of which are in
# the batch already, and a copy of a target is a negative.
_FEWEST_BATCHES = 3


def new_model(
    options: Any, num_channels: int, units: Sequence[str] | None, lengths: np.ndarray, subjects: Sequence[str]
) -> CPC:
    """Return an untrained model for recordings of these lengths and subjects; `options` is the `CPCTransformer`.

    Raises:
        ValueError: if the recordings are too short to predict a step.
    """
    kernels, strides = _geometry(options.kernels, options.strides, int(np.median(lengths)))
    encoder = SignalEncoder(
        num_channels,
        options.dim,
        float(options.sample_rate_hz),
        kernels,
        strides,
        front=options.front,
        level_seconds=options.level_seconds,
        baseline_seconds=options.baseline_seconds,
        units=units,
    )
    longest = int(lengths.max())
    window_samples = length_of_windows(options.window_samples, encoder, longest)
    num_latents = encoder.num_latents(window_samples)
    # If kernels are longer than their stride, a latent shares samples with the next latents, which would be easy to
    # predict.
    skip_steps = encoder.overlapping_steps
    num_steps = min(options.num_steps, num_latents - 1 - skip_steps)
    if num_steps < 1:
        found = f"windows of {window_samples} samples (n_features = {longest} of one channel)"
        legal = f"but a step needs {2 + skip_steps}: use longer recordings or windows, or lower `strides`"
        raise ValueError(f"{found} give {num_latents} latents, {legal}")
    is_long = reach(encoder, lengths, num_steps + skip_steps)
    names, group = np.unique(np.array(subjects)[is_long], return_inverse=True)
    windows = np.bincount(group, num_windows(lengths[is_long], window_samples))
    are_enough = options.batch_size > 1 and windows.min() >= _FEWEST_BATCHES * options.batch_size
    default = "same_speaker" if are_enough and "" not in names else "mixed"
    loss = Contrastive(options.negatives or default, skip_steps=skip_steps)
    return CPC(encoder, GRU(options.dim), Bilinear(num_steps), loss)


def length_of_windows(window_samples: int | None, encoder: Any, longest: int) -> int:
    """Return the length of training windows, which is at most that of the longest recording."""
    return min(window_samples or _LONGEST_WINDOW_LATENTS * encoder.hop_samples, longest)


def reach(encoder: Any, lengths: np.ndarray, furthest: int) -> Bool[np.ndarray, " n"]:
    """Return which recordings are long enough to predict `furthest` latents ahead; others are not trained on."""
    return np.array([encoder.num_latents(int(length)) > furthest for length in lengths])


def num_windows(lengths: np.ndarray, window_samples: int) -> Int[np.ndarray, " n"]:
    """Return the number of windows of each recording; a short one is one window."""
    return np.maximum(lengths // window_samples, 1)


def _geometry(
    kernels: Sequence[int] | None, strides: Sequence[int] | None, median_length: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return kernels and strides as given, or the coarsest choice that gives a median recording enough latents."""
    if (kernels is None) != (strides is None):
        raise ValueError(f"kernels={kernels} and strides={strides}: give both, or none")
    if kernels is not None and strides is not None:
        return tuple(kernels), tuple(strides)
    fits = [each for each in _GEOMETRIES if median_length // math.prod(each[1]) >= _FEWEST_LATENTS]
    return fits[0] if fits else _GEOMETRIES[-1]
