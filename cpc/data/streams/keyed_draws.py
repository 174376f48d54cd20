"""Random numbers as a function of a key and an index: no generator and no state, the same on every machine and rank.

B keys.
"""

import numpy as np
from jaxtyping import Float, Int

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def keyed_uniforms(keys: Int[np.ndarray, " B"], num: int) -> Float[np.ndarray, "B n"]:
    """Return `num` numbers in [0, 1) for every key, by the counter-based SplitMix64 (Steele, Lea and Flood 2014).

    Args:
        keys: any 64-bit integers; equal keys give equal numbers.
        num: numbers per key.
    """
    with np.errstate(over="ignore"):  # the method computes modulo 2^64
        streams = _mixed(keys.astype(np.uint64) * _GOLDEN + _GOLDEN)
        counters = streams[:, None] + _GOLDEN * np.arange(1, num + 1, dtype=np.uint64)
        bits = _mixed(counters)
    return (bits >> np.uint64(11)) * 2.0**-53


def _mixed(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
