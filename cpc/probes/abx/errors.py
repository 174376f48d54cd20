"""How often X is closer to B than to A: of each cell, and averaged as ZeroSpeech does.

m cells, g groups, P pairs of items, G speakers, Q pairs of phones.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from einops import rearrange

from cpc.probes.abx.cells import Cells, Groups
from cpc.probes.results import interval, resample

_MOST_TRIPLETS_TOGETHER = 2**22


@dataclass(frozen=True)
class ABXError:
    """The outcome of an ABX test.

    Attributes:
        error_percent: how often X is closer to B than to A, ties half; 50 by chance. The mean over contexts (and X's
            speakers), then over speakers of A and B, then over ordered pairs of phones.
        interval_percent: 95 % interval by bootstrap over the speakers of A and B; None with a single one. Too narrow
            where these are few: of 4 or 6 it held the truth 9 times in 10 within speakers, and 3 times in 4 across,
            where all share their X.
        num_triplets: triplets compared.
        num_cells: groups of triplets of one context, speaker (or two) and pair of phones.
        num_phone_pairs: Q.
        num_speakers: G, of A and B.
    """

    error_percent: float
    interval_percent: tuple[float, float] | None
    num_triplets: int
    num_cells: int
    num_phone_pairs: int
    num_speakers: int


def abx_error(groups: Groups, cells: Cells, distances: Callable[[np.ndarray], np.ndarray]) -> ABXError | None:
    """Compare all triplets of some cells; None if there are none.

    Args:
        groups: of the items.
        cells: of these groups.
        distances: of `[P, 2]` pairs of items, X's before the other's, `[P]`.
    """
    if not len(cells.a):
        return None
    errors, num_triplets = cell_errors(groups, cells, distances)
    speakers, speaker = np.unique(groups.speakers[cells.a], return_inverse=True)
    of_pair = np.stack([groups.phones[cells.a], groups.phones[cells.b]])
    pairs, pair = np.unique(of_pair, axis=1, return_inverse=True)
    sums, counts = np.zeros((2, len(speakers), pairs.shape[1]))
    np.add.at(sums, (speaker, pair), errors)
    np.add.at(counts, (speaker, pair), 1)
    means, is_there = sums / np.maximum(counts, 1), counts > 0
    return ABXError(
        error_percent=100 * float((means.sum(0) / is_there.sum(0)).mean()),
        interval_percent=None if len(speakers) == 1 else _interval_percent(means, is_there),
        num_triplets=num_triplets,
        num_cells=len(errors),
        num_phone_pairs=pairs.shape[1],
        num_speakers=len(speakers),
    )


def cell_errors(groups: Groups, cells: Cells, distances: Callable[[np.ndarray], np.ndarray]) -> tuple[np.ndarray, int]:
    """`[m]` the share of each cell's triplets whose X is closer to B than to A, ties half; how many triplets in all."""
    sizes = np.array([len(of_group) for of_group in groups.members])
    table = _DistanceTable(groups, np.concatenate([_pairs(cells.x, cells.a), _pairs(cells.x, cells.b)]), distances)
    is_within = cells.a == cells.x
    shapes, shape_of_cell = np.unique(
        np.stack([sizes[cells.x], sizes[cells.a], sizes[cells.b], is_within]), axis=1, return_inverse=True
    )
    errors, num_triplets = np.empty(len(is_within)), 0
    for number, (num_x, num_a, num_b, within) in enumerate(shapes.T.tolist()):
        of_shape = np.flatnonzero(shape_of_cell == number)
        is_triplet = ~np.eye(num_x, dtype=bool) if within else np.ones((num_x, num_a), bool)  # X is never A itself
        num_of_cell = int(is_triplet.sum()) * num_b
        num_triplets += num_of_cell * len(of_shape)
        for chosen in np.array_split(of_shape, 1 + len(of_shape) * num_of_cell // _MOST_TRIPLETS_TOGETHER):
            to_a = table.of(cells.x[chosen], cells.a[chosen], num_x, num_a)[:, is_triplet]
            to_b = table.of(cells.x[chosen], cells.b[chosen], num_x, num_b)[:, np.nonzero(is_triplet)[0]]
            wrong = (to_a[..., None] > to_b) + 0.5 * (to_a[..., None] == to_b)
            errors[chosen] = wrong.mean((1, 2))
    return errors, num_triplets


class _DistanceTable:
    """The distances between all members of pairs of groups, each pair of items measured once.

    Args:
        groups: of the items.
        pairs: `[p, 2]` which groups; repeated ones are stored once.
        distances: of pairs of items.
    """

    def __init__(self, groups: Groups, pairs: np.ndarray, distances: Callable[[np.ndarray], np.ndarray]) -> None:
        sizes = np.array([len(of_group) for of_group in groups.members])
        items, begins = np.concatenate(groups.members), np.cumsum(sizes) - sizes
        self._num_groups = len(sizes)
        self._keys = np.unique(self._key(pairs))
        xs, others = self._keys // self._num_groups, self._keys % self._num_groups
        counts = sizes[xs] * sizes[others]
        self._places = np.cumsum(counts) - counts
        pair = np.repeat(np.arange(len(counts)), counts)
        x, other = np.divmod(np.arange(counts.sum()) - self._places[pair], sizes[others[pair]])
        of_items = _pairs(items[begins[xs[pair]] + x], items[begins[others[pair]] + other])
        is_within = xs[pair] == others[pair]
        of_items[is_within] = np.sort(of_items[is_within], 1)  # there and back are one
        num_items = 1 + int(of_items.max())
        keys, place = np.unique(of_items @ (num_items, 1), return_inverse=True)
        of_items = _pairs(*np.divmod(keys, num_items))
        measured = np.full(len(keys), np.nan)  # of an item and itself, which nobody asks for
        differ = of_items[:, 0] != of_items[:, 1]
        measured[differ] = distances(of_items[differ])
        self._values = measured[place]

    def of(self, x: np.ndarray, other: np.ndarray, num_x: int, num_others: int) -> np.ndarray:
        """`[m, num_x, num_others]` between the members of the groups of m cells, all of these sizes."""
        places = self._places[np.searchsorted(self._keys, self._key(_pairs(x, other)))]
        values = self._values[places[:, None] + np.arange(num_x * num_others)]
        return rearrange(values, "m (x a) -> m x a", x=num_x)

    def _key(self, pairs: np.ndarray) -> np.ndarray:
        return pairs @ (self._num_groups, 1)


def _pairs(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.stack([first, second], 1)


def _interval_percent(means: np.ndarray, is_there: np.ndarray) -> tuple[float, float]:
    """Of `[G, Q]` mean errors, where they are there."""
    sums, num_there = np.split(resample(np.concatenate([means, is_there], 1)), 2, axis=1)
    of_pair = np.divide(sums, num_there, out=np.full(sums.shape, np.nan), where=num_there > 0)
    return interval(100 * np.nanmean(of_pair, 1), len(means))
