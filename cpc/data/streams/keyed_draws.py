"""Random numbers as a function of a key and an index. There is no generator and no state; all machines and ranks agree.

B keys.
"""

import numpy as np
from jaxtyping import Float, Int

from cpc.native.splitmix64 import INCREMENT, LAST_SHIFT, ROUNDS

_INCREMENT = np.uint64(INCREMENT)


def keyed_uniforms(keys: Int[np.ndarray, " B"], num: int) -> Float[np.ndarray, "B n"]:
    """Return `num` numbers in [0, 1) for every key, a 64-bit integer, by SplitMix64 (`cpc.native.splitmix64`)."""
    with np.errstate(over="ignore"):  # the method computes modulo 2^64
        streams = _mix(keys.astype(np.uint64) * _INCREMENT + _INCREMENT)
        bits = _mix(streams[:, None] + _INCREMENT * np.arange(1, num + 1, dtype=np.uint64))
    return (bits >> np.uint64(11)) * 2.0**-53


def _mix(x: np.ndarray) -> np.ndarray:
    for shift, factor in ROUNDS:
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x ^ (x >> np.uint64(LAST_SHIFT))
