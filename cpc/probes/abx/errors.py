"""ABX errors (the share of triplets with X closer to B than to A) of cells, averaged as in ZeroSpeech.

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
    """The result of an ABX test.

    Attributes:
        error_percent: share of triplets whose X is closer to B than to A, where a tie counts half; 50 by chance. The
            share is averaged over contexts (and speakers of X), then over speakers of A and B, then over ordered pairs
            of phones.
        interval_percent: 95 % interval by bootstrap over the speakers of A and B; None with a single speaker. The
            interval is too narrow for few speakers. With 4 or 6 speakers it covered the truth 9 times in 10 within
            speakers, and 3 times in 4 across speakers, where the speakers of A and B share the items X.
        num_triplets: number of triplets.
        num_cells: number of cells: triplets with equal context, speaker (or two speakers) and pair of phones.
        num_phone_pairs: Q.
        num_speakers: G, the number of speakers of A and B.
    """

    error_percent: float
    interval_percent: tuple[float, float] | None
    num_triplets: int
    num_cells: int
    num_phone_pairs: int
    num_speakers: int


def abx_error(groups: Groups, cells: Cells, distances: Callable[[np.ndarray], np.ndarray]) -> ABXError | None:
    """Return the error over all triplets of the cells; None if there is no cell.

    Args:
        groups: the groups of the items.
        cells: cells of these groups.
        distances: returns the `[P]` distances of `[P, 2]` pairs of items, with X first.
    """
    if not len(cells.a):
        return None
    errors, num_triplets = cell_errors(groups, cells, distances)
    speakers, speaker = np.unique(groups.speakers[cells.a], return_inverse=True)
    phones = np.stack([groups.phones[cells.a], groups.phones[cells.b]])
    pairs, pair = np.unique(phones, axis=1, return_inverse=True)
    sums, counts = np.zeros((2, len(speakers), pairs.shape[1]))
    np.add.at(sums, (speaker, pair), errors)
    np.add.at(counts, (speaker, pair), 1)
    means, is_present = sums / np.maximum(counts, 1), counts > 0
    return ABXError(
        error_percent=100 * float((means.sum(0) / is_present.sum(0)).mean()),
        interval_percent=None if len(speakers) == 1 else _interval_percent(means, is_present),
        num_triplets=num_triplets,
        num_cells=len(errors),
        num_phone_pairs=pairs.shape[1],
        num_speakers=len(speakers),
    )


def cell_errors(groups: Groups, cells: Cells, distances: Callable[[np.ndarray], np.ndarray]) -> tuple[np.ndarray, int]:
    """Return the `[m]` errors of the cells, where a tie counts half, and the number of all triplets."""
    sizes = np.array([len(items) for items in groups.members])
    table = _DistanceTable(groups, np.concatenate([_pairs(cells.x, cells.a), _pairs(cells.x, cells.b)]), distances)
    is_within = cells.a == cells.x
    shapes, shape_of_cell = np.unique(
        np.stack([sizes[cells.x], sizes[cells.a], sizes[cells.b], is_within]), axis=1, return_inverse=True
    )
    errors, num_triplets = np.empty(len(is_within)), 0
    for index, (num_x, num_a, num_b, within) in enumerate(shapes.T.tolist()):
        same_shape = np.flatnonzero(shape_of_cell == index)
        is_triplet = ~np.eye(num_x, dtype=bool) if within else np.ones((num_x, num_a), bool)  # X is never A itself
        triplets_per_cell = int(is_triplet.sum()) * num_b
        num_triplets += triplets_per_cell * len(same_shape)
        for chosen in np.array_split(same_shape, 1 + len(same_shape) * triplets_per_cell // _MOST_TRIPLETS_TOGETHER):
            a_distances = table.between(cells.x[chosen], cells.a[chosen], num_x, num_a)[:, is_triplet]
            b_distances = table.between(cells.x[chosen], cells.b[chosen], num_x, num_b)[:, np.nonzero(is_triplet)[0]]
            wrong = (a_distances[..., None] > b_distances) + 0.5 * (a_distances[..., None] == b_distances)
            errors[chosen] = wrong.mean((1, 2))
    return errors, num_triplets


class _DistanceTable:
    """Distances between all items of pairs of groups; each pair of items is measured once.

    Args:
        groups: the groups of the items.
        pairs: `[p, 2]` pairs of groups; repeated pairs are stored once.
        distances: returns the distances of pairs of items.
    """

    def __init__(self, groups: Groups, pairs: np.ndarray, distances: Callable[[np.ndarray], np.ndarray]) -> None:
        sizes = np.array([len(members) for members in groups.members])
        items, begins = np.concatenate(groups.members), np.cumsum(sizes) - sizes
        self._num_groups = len(sizes)
        self._keys = np.unique(self._key(pairs))
        xs, others = self._keys // self._num_groups, self._keys % self._num_groups
        counts = sizes[xs] * sizes[others]
        self._starts = np.cumsum(counts) - counts
        pair = np.repeat(np.arange(len(counts)), counts)
        x, other = np.divmod(np.arange(counts.sum()) - self._starts[pair], sizes[others[pair]])
        item_pairs = _pairs(items[begins[xs[pair]] + x], items[begins[others[pair]] + other])
        is_within = xs[pair] == others[pair]
        item_pairs[is_within] = np.sort(item_pairs[is_within], 1)  # within a group, (j, i) is the pair (i, j)
        num_items = 1 + int(item_pairs.max())
        keys, index = np.unique(item_pairs @ (num_items, 1), return_inverse=True)
        item_pairs = _pairs(*np.divmod(keys, num_items))
        measured = np.full(len(keys), np.nan)  # pairs of an item with itself are not used and stay NaN
        differ = item_pairs[:, 0] != item_pairs[:, 1]
        measured[differ] = distances(item_pairs[differ])
        self._values = measured[index]

    def between(self, x: np.ndarray, other: np.ndarray, num_x: int, num_others: int) -> np.ndarray:
        """Return `[m, num_x, num_others]` distances between the items of m pairs of groups of these sizes."""
        starts = self._starts[np.searchsorted(self._keys, self._key(_pairs(x, other)))]
        values = self._values[starts[:, None] + np.arange(num_x * num_others)]
        return rearrange(values, "m (x a) -> m x a", x=num_x)

    def _key(self, pairs: np.ndarray) -> np.ndarray:
        return pairs @ (self._num_groups, 1)


def _pairs(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.stack([first, second], 1)


def _interval_percent(means: np.ndarray, is_present: np.ndarray) -> tuple[float, float]:
    """Return the interval of `[G, Q]` mean errors; only errors with `is_present` count."""
    sums, counts = np.split(resample(np.concatenate([means, is_present], 1)), 2, axis=1)
    pair_means = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
    return interval(100 * np.nanmean(pair_means, 1), len(means))
