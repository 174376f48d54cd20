"""MiniRocket (Dempster et al. 2021, arXiv:2012.08791), from the package aeon: a baseline for windows of signals.

n windows, T samples, C channels, F features.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from einops import rearrange
from jaxtyping import Float32, Shaped

NUM_KERNELS = 84  # every set of three of nine weights; aeon rounds the number of features down to a multiple
FEWEST_SAMPLES = 9  # length of a kernel

Transform = Callable[[np.ndarray], np.ndarray]  # [m, T, C] to [m, F]


def fit_minirocket(
    windows: Shaped[np.ndarray, "..."], *, num_features: int = 9996, seed: int = 0, num_threads: int = 1
) -> Transform:
    """Fit MiniRocket on training windows, and return the function from windows to features.

    A feature is the share of a convolution's values above a threshold. Kernels and dilations are fixed; a random set of
    channels enters each convolution, and thresholds are quantiles of the convolutions of random training windows. Fit
    on training windows only: thresholds of other windows would leak.

    Features lie between 0 and 1. The authors put a ridge classifier on them for less than 10 000 windows, and logistic
    regression for more, both on standardised features.

    Args:
        windows: training windows, `[n, T, C]`, finite; T is at least 9.
        num_features: number of features; rounded down to a multiple of 84.
        seed: seed of channels and thresholds.
        num_threads: threads that compute features.

    Returns:
        A function of windows `[m, T, C]` with the same T and C. It returns `[m, num_features]` float32.

    Raises:
        ValueError: if aeon is missing, `num_features` is below 84, or windows are too short, not finite or of another
            shape than those that MiniRocket was fitted on.
    """
    try:
        from aeon.transformations.collection.convolution_based import MiniRocket
    except ImportError as error:
        raise ValueError(
            f"MiniRocket needs the package aeon ({error}): install it with `pip install aeon 'numba>=0.63.1'`"
        ) from error
    if num_features < NUM_KERNELS:
        raise ValueError(f"`num_features` is {num_features}, but MiniRocket has at least {NUM_KERNELS}")
    _check(windows, windows.shape)
    fitted: Any = MiniRocket(n_kernels=num_features, n_jobs=num_threads, random_state=seed)
    with _random_state_kept():
        fitted.fit(_as_aeon(windows))

    return _Transform(fitted, windows.shape)


class _Transform:
    """Features of windows by a fitted MiniRocket; can be pickled."""

    def __init__(self, fitted: Any, shape: tuple[int, ...]) -> None:
        self._fitted, self._shape = fitted, shape

    def __call__(self, windows: np.ndarray) -> Float32[np.ndarray, "n F"]:
        _check(windows, self._shape)
        return np.asarray(self._fitted.transform(_as_aeon(windows)), np.float32)


def _as_aeon(windows: np.ndarray) -> Float32[np.ndarray, "n C T"]:
    return np.ascontiguousarray(rearrange(windows, "n T C -> n C T"), np.float32)


def _check(windows: np.ndarray, shape: tuple[int, ...]) -> None:
    if windows.ndim != 3 or windows.shape[1:] != shape[1:]:
        raise ValueError(
            f"windows are {list(windows.shape)}, but must be [n, T, C]; MiniRocket was fitted on {list(shape)}"
        )
    if windows.shape[1] < FEWEST_SAMPLES or not len(windows):
        raise ValueError(
            f"windows are {list(windows.shape)}, but MiniRocket needs at least one window and {FEWEST_SAMPLES} samples "
            "in each: choose longer windows"
        )
    if not np.isfinite(windows).all():
        raise ValueError(
            "windows hold NaN or infinite values, which MiniRocket cannot read: fill them or leave them out"
        )


@contextmanager
def _random_state_kept() -> Iterator[None]:
    """Restore numpy's global random state, which aeon seeds."""
    state = np.random.get_state()
    try:
        yield
    finally:
        np.random.set_state(state)
