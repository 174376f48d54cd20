"""Pooling of the vectors of an observation into one vector. T vectors, D feature dim, P segments."""

import itertools
import re

import numpy as np
from jaxtyping import Float

POOLS = "`frames`, `mean`, `mean_std` or `segments:N`"


def check_pool(pool: str, has_frames: bool = True) -> None:
    """Raise a ValueError if the name of a pooling is unknown, or is `frames` where one vector is needed."""
    if not re.fullmatch(r"mean|mean_std|segments:[1-9]\d{0,3}" + "|frames" * has_frames, pool):
        legal = POOLS if has_frames else POOLS.removeprefix("`frames`, ")
        raise ValueError(f"pool={pool!r} is not one of {legal}, with N segments of equal length")


def pool_vectors(x: Float[np.ndarray, "T D"], pool: str) -> Float[np.ndarray, " F"]:
    """Return one vector, computed in float64.

    `mean` has D values. `mean_std` has 2 D values: mean and standard deviation. `segments:N` has N D values: the means
    of N segments of equal length. With fewer than N vectors, neighbouring segments share a vector.
    """
    if pool == "mean":
        return x.mean(0, dtype=np.float64).astype(np.float32)
    if pool == "mean_std":
        return np.concatenate([x.mean(0, dtype=np.float64), x.std(0, dtype=np.float64)]).astype(np.float32)
    num_segments = int(pool.removeprefix("segments:"))
    edges = np.arange(num_segments + 1) * len(x) // num_segments
    segments = [x[first : max(end, first + 1)] for first, end in itertools.pairwise(edges)]
    means = [segment.mean(0, dtype=np.float64) for segment in segments]
    return np.concatenate(means).astype(np.float32)
