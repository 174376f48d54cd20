"""ABX errors: the share of triplets with X closer to B than to A, averaged as in ZeroSpeech.

A cell is three groups of items: one for X, one for A, one for B. A group holds the items of one label: context (the
phones before and after, or any context), speaker and phone. Any items A, B and X of a cell form a triplet, unless X is
the same item as A. R stored vectors, D feature dim, n items, m cells, P pairs of items, G speakers, Q pairs of phones.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, permutations
from typing import Annotated, Any, Literal

import numpy as np

from cpc.config.argument_rules import Choices, Count, Range, Seed, check_fields
from cpc.data.audio.items import Items
from cpc.probes.abx.alignment import alignment_distances
from cpc.probes.abx.items import Spans
from cpc.probes.results import interval, resample

Context = Literal["within", "any"]
Label = tuple[Any, str, str]  # context, speaker, phone
Groups = Mapping[Label, np.ndarray]  # the indices of the items of each label, in the order of the labels
Cell = tuple[Label, Label, Label]  # of X, A and B; B has A's context and speaker, X has A's context and phone


@dataclass(frozen=True)
class ABXProtocol:
    """The choice of triplets; the defaults are libri-light's.

    Attributes:
        context: `within` compares phones between the same neighbours, `any` between any neighbours, which is harder
            and works for smaller corpora (Hallap et al. 2022, arXiv:2210.15775).
        max_size_group: maximum number of items of one context, speaker and phone, at least 2; a random subset of a
            larger group is taken.
        max_x_across: maximum number of speakers of X for each group of A, in the test across speakers. If there are
            more speakers, a random subset is taken.
        seed: seed of the subsampling.
    """

    context: Context = "within"
    max_size_group: Annotated[int, Range(2)] = 10
    max_x_across: Count = 5
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_fields(self)

    def cells(self, items: Items) -> tuple[Groups, dict[str, list[Cell]]]:
        """Return the groups of the items, and their cells `within` and `across` speakers."""
        rng = np.random.default_rng(self.seed)
        by_label: dict[Label, list[int]] = defaultdict(list)
        neighbours = zip(items.previous, items.following, strict=True)
        contexts = [""] * len(items) if self.context == "any" else neighbours
        for item, label in enumerate(zip(contexts, items.speakers, items.phones, strict=True)):
            by_label[label].append(item)
        # the work grows with the cube of the size of a group
        groups = {label: np.array(_subsample(self.max_size_group, by_label[label], rng)) for label in sorted(by_label)}
        return groups, {"within": _cells_within(groups), "across": _cells_across(groups, self.max_x_across, rng)}


def _cells_within(groups: Groups) -> list[Cell]:
    """Return the cells within speakers: A and X are in one group."""
    return [(a, a, b) for block in _blocks(groups) for a, b in permutations(block, 2) if len(groups[a]) > 1]


def _cells_across(groups: Groups, max_speakers: int, rng: np.random.Generator) -> list[Cell]:
    """Return the cells across speakers: X has another speaker, one of at most `max_speakers` random speakers."""
    labels_of_phone = defaultdict(list)
    for label in groups:
        labels_of_phone[label[0], label[2]].append(label)
    cells = []
    for block in _blocks(groups):
        for a in block:
            others = [label for label in labels_of_phone[a[0], a[2]] if label != a]
            cells += [(x, a, b) for x in _subsample(max_speakers, others, rng) for b in block if b != a]
    return cells


def _blocks(groups: Groups) -> Iterator[list[Label]]:
    """Yield the labels of equal context and speaker, if there are at least two."""
    for _, labels in groupby(groups, lambda label: label[:2]):
        block = list(labels)
        if len(block) > 1:
            yield block


def _subsample(size: int, members: list[Any], rng: np.random.Generator) -> list[Any]:
    if len(members) <= size:
        return members
    return [members[index] for index in np.sort(rng.choice(len(members), size, replace=False))]


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


def abx_errors(
    vectors: Any,
    spans: Spans,
    items: Items,
    protocol: ABXProtocol | None = None,
    *,
    device: str = "cpu",
    progress: bool = False,
) -> dict[str, ABXError | None]:
    """Return how often features confuse two phones `within` and `across` speakers; None if there is no triplet."""
    Choices((len(items),)).check("the number of spans", len(spans.starts))
    for row, (start, length) in enumerate(zip(spans.starts.tolist(), spans.lengths.tolist(), strict=True)):
        end = start + length
        if not 0 <= start <= end <= len(vectors) or not np.isfinite(vectors[start:end]).all():
            raise ValueError(f"item {row} needs finite frames {start} to {end} of the {len(vectors)} frames")
    kept = np.flatnonzero(spans.lengths)
    if not len(kept):
        return {"within": None, "across": None}
    groups, cells = (protocol or ABXProtocol()).cells(items.take(kept))
    distances = partial(
        alignment_distances, vectors, spans.starts[kept], spans.lengths[kept], device=device, progress=progress
    )
    return {mode: abx_error(groups, mode_cells, distances) for mode, mode_cells in cells.items()}


def abx_error(groups: Groups, cells: Sequence[Cell], distances: Callable[[np.ndarray], np.ndarray]) -> ABXError | None:
    """Return the error over all triplets of the cells, by a function of pairs of items; None without a cell."""
    if not cells:
        return None
    errors, num_triplets = cell_errors(groups, cells, distances)
    speakers, speaker = np.unique([a[1] for _, a, _ in cells], return_inverse=True)
    pairs, pair = np.unique([(a[2], b[2]) for _, a, b in cells], axis=0, return_inverse=True)
    sums, counts = np.zeros((2, len(speakers), len(pairs)))
    np.add.at(sums, (speaker, pair), errors)
    np.add.at(counts, (speaker, pair), 1)
    means, is_present = sums / np.maximum(counts, 1), counts > 0
    return ABXError(
        error_percent=100 * float((means.sum(0) / is_present.sum(0)).mean()),
        interval_percent=None if len(speakers) == 1 else _interval_percent(means, is_present),
        num_triplets=num_triplets,
        num_cells=len(cells),
        num_phone_pairs=len(pairs),
        num_speakers=len(speakers),
    )


def cell_errors(
    groups: Groups, cells: Sequence[Cell], distances: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, int]:
    """Return the `[m]` errors of the cells, where a tie counts half, and the number of all triplets."""
    pairs = list(dict.fromkeys((x, other) for x, a, b in cells for other in (a, b)))
    table = dict(zip(pairs, _group_distances(groups, pairs, distances), strict=True))
    errors, num_triplets = [], 0
    for (x, a), same in groupby(cells, lambda cell: cell[:2]):
        b_tables = [table[x, b] for *_, b in same]
        sizes = np.array([each.shape[1] for each in b_tables])
        to_a, to_b = table[x, a][:, :, None], np.concatenate(b_tables, 1)[:, None]
        is_wrong = (to_a > to_b) + 0.5 * (to_a == to_b)
        is_triplet = ~np.eye(len(is_wrong), dtype=bool) if a == x else np.ones(is_wrong.shape[:2], bool)  # X is never A
        is_wrong = is_wrong[is_triplet]
        errors += (np.add.reduceat(is_wrong.sum(0), np.cumsum(sizes) - sizes) / (len(is_wrong) * sizes)).tolist()
        num_triplets += is_wrong.size
    return np.array(errors), num_triplets


def _group_distances(
    groups: Groups, pairs: Sequence[tuple[Label, Label]], distances: Callable[[np.ndarray], np.ndarray]
) -> list[np.ndarray]:
    """Return the distances between all items of each pair of groups; each pair of items is measured once."""
    num_items, keys = 1 + max(int(items.max()) for items in groups.values()), []
    for x, other in pairs:
        first, second = groups[x][:, None], groups[other][None]
        if x == other:  # (j, i) is the pair (i, j)
            first, second = np.minimum(first, second), np.maximum(first, second)
        keys.append(first * num_items + second)
    unique, index = np.unique(np.concatenate([each.ravel() for each in keys]), return_inverse=True)
    item_pairs = np.stack(np.divmod(unique, num_items), 1)
    measured = np.full(len(unique), np.nan)  # pairs of an item with itself are not used and stay NaN
    differ = item_pairs[:, 0] != item_pairs[:, 1]
    measured[differ] = distances(item_pairs[differ])
    parts = np.split(measured[index], np.cumsum([each.size for each in keys])[:-1])
    return [part.reshape(each.shape) for part, each in zip(parts, keys, strict=True)]


def _interval_percent(means: np.ndarray, is_present: np.ndarray) -> tuple[float, float]:
    """Return the interval of `[G, Q]` mean errors; only errors with `is_present` count."""
    sums, counts = np.split(resample(np.concatenate([means, is_present], 1)), 2, axis=1)
    pair_means = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
    return interval(100 * np.nanmean(pair_means, 1), len(means))
