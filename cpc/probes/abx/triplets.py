"""The triplets of an ABX test. A cell is three groups of items: one for A, one for B, one for X.

n items, g groups, m cells.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, permutations
from typing import Annotated, Any, Literal, NamedTuple, get_args

import numpy as np

from cpc.config.argument_rules import Count, Range, Seed, check_fields
from cpc.data.audio.item_files import Items

Context = Literal["within", "any"]


class Groups(NamedTuple):
    """Groups of items with equal context (the phones before and after, or any context), speaker and phone.

    Attributes:
        contexts: `[g]` int64, ascending.
        speakers: `[g]` int64, ascending within a context.
        phones: `[g]` int64, ascending within a speaker.
        members: the indices of the items of each group.
    """

    contexts: np.ndarray
    speakers: np.ndarray
    phones: np.ndarray
    members: list[np.ndarray]

    @classmethod
    def of(cls, items: Items, is_any_context: bool, max_size: int, rng: np.random.Generator) -> "Groups":
        """Group items. A larger group keeps `max_size` random items, since the work grows with the cube of its size."""
        contexts: Sequence[Any] = list(zip(items.previous, items.following, strict=True))
        columns = ([""] * len(items) if is_any_context else contexts, items.speakers, items.phones)
        codes = np.stack([_codes(column) for column in columns])
        labels, group = np.unique(codes, axis=1, return_inverse=True)
        members = np.split(np.argsort(group, kind="stable"), np.cumsum(np.bincount(group))[:-1])
        return cls(labels[0], labels[1], labels[2], [_subsample(max_size, items, rng) for items in members])

    @property
    def blocks(self) -> Iterator[list[int]]:
        """Lists of at least two groups with equal context and speaker."""
        keys = list(zip(self.contexts.tolist(), self.speakers.tolist(), strict=True))
        for _, block in groupby(range(len(keys)), keys.__getitem__):
            groups = list(block)
            if len(groups) > 1:
                yield groups


class Cells(NamedTuple):
    """Triples of groups. Any items A, B and X from the three groups form a triplet, unless X is the same item as A.

    Attributes:
        a: `[m]` int64 group of A.
        b: `[m]` int64 group of B, with A's context and speaker and another phone.
        x: `[m]` int64 group of X, with A's context and phone.
    """

    a: np.ndarray
    b: np.ndarray
    x: np.ndarray


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

    Raises:
        ValueError: if `max_size_group` is below 2, or `max_x_across` below 1.
    """

    context: Context = "within"
    max_size_group: Annotated[int, Range(2)] = 10
    max_x_across: Count = 5
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.context not in get_args(Context):
            raise ValueError(f"context={self.context!r} is not one of {', '.join(get_args(Context))}")

    def cells(self, items: Items) -> tuple[Groups, dict[str, Cells]]:
        """Return the groups of the items, and their cells `within` and `across` speakers."""
        rng = np.random.default_rng(self.seed)
        groups = Groups.of(items, self.context == "any", self.max_size_group, rng)
        return groups, {"within": cells_within(groups), "across": cells_across(groups, self.max_x_across, rng)}


def cells_within(groups: Groups) -> Cells:
    """Return the cells within speakers: A and X are in one group."""
    return _cells((a, b, a) for block in groups.blocks for a, b in permutations(block, 2) if len(groups.members[a]) > 1)


def cells_across(groups: Groups, max_speakers: int, rng: np.random.Generator) -> Cells:
    """Return the cells across speakers: X has another speaker, one of at most `max_speakers` random speakers."""
    groups_of_phone = defaultdict(list)
    keys = list(zip(groups.contexts.tolist(), groups.phones.tolist(), strict=True))
    for group, key in enumerate(keys):
        groups_of_phone[key].append(group)
    triples = []
    for block in groups.blocks:
        for a in block:
            others = np.array([group for group in groups_of_phone[keys[a]] if group != a], np.int64)
            xs = _subsample(max_speakers, others, rng).tolist()
            triples += [(a, b, x) for x in xs for b in block if b != a]
    return _cells(triples)


def _cells(triples: Iterable[tuple[int, int, int]]) -> Cells:
    return Cells(*np.array(list(triples), np.int64).reshape(-1, 3).T)


def _codes(labels: Sequence[Any]) -> np.ndarray:
    code_of = {label: code for code, label in enumerate(sorted(set(labels)))}
    return np.array([code_of[label] for label in labels], np.int64)


def _subsample(size: int, members: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return members if len(members) <= size else np.sort(rng.choice(members, size, replace=False))
