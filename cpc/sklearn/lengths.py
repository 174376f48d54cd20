"""Recordings of similar length, which are encoded together."""

import numpy as np

_SAMPLES_AT_ONCE = 2**18


def similar_lengths(lengths: np.ndarray) -> list[np.ndarray]:
    """Return the rows in groups of similar length, whose padded samples stay below `_SAMPLES_AT_ONCE`."""
    order = np.argsort(lengths, kind="stable")
    groups, first = [], 0
    for last in range(1, len(order) + 1):
        if last == len(order) or (last + 1 - first) * lengths[order[last]] > _SAMPLES_AT_ONCE:
            groups.append(order[first:last])
            first = last
    return groups
