"""Who is compared with whom: groups of like items, and cells of three groups for A, B and X.

n items, g groups, m cells.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby, permutations
from typing import Any, NamedTuple

import numpy as np

from cpc.data.audio.item_files import Items


class Groups(NamedTuple):
    """Items of one context (the phones before and after, or any), speaker and phone each.

    Attributes:
        contexts: `[g]` int64, ascending.
        speakers: `[g]` int64, ascending within a context.
        phones: `[g]` int64, ascending within a speaker.
        members: the items of each.
    """

    contexts: np.ndarray
    speakers: np.ndarray
    phones: np.ndarray
    members: list[np.ndarray]

    @classmethod
    def of(cls, items: Items, is_any_context: bool, max_size: int, rng: np.random.Generator) -> "Groups":
        """Group items; of a larger group so many are drawn, for the effort grows with the cube."""
        contexts: Sequence[Any] = list(zip(items.previous, items.following, strict=True))
        columns = ([""] * len(items) if is_any_context else contexts, items.speakers, items.phones)
        codes = np.stack([_codes(column) for column in columns])
        labels, group = np.unique(codes, axis=1, return_inverse=True)
        members = np.split(np.argsort(group, kind="stable"), np.cumsum(np.bincount(group))[:-1])
        return cls(labels[0], labels[1], labels[2], [_at_most(max_size, of_group, rng) for of_group in members])

    @property
    def blocks(self) -> Iterator[list[int]]:
        """Groups of one context and speaker, where there are several."""
        keys = list(zip(self.contexts.tolist(), self.speakers.tolist(), strict=True))
        for _, block in groupby(range(len(keys)), keys.__getitem__):
            groups = list(block)
            if len(groups) > 1:
                yield groups


class Cells(NamedTuple):
    """Triples of groups: every A, B and X of them is a triplet, but for X that is A itself.

    Attributes:
        a: `[m]` int64.
        b: `[m]` of A's context and speaker, and another phone.
        x: `[m]` of A's context and phone.
    """

    a: np.ndarray
    b: np.ndarray
    x: np.ndarray


def cells_within(groups: Groups) -> Cells:
    """X is of A's group: one speaker says all three."""
    return _cells((a, b, a) for block in groups.blocks for a, b in permutations(block, 2) if len(groups.members[a]) > 1)


def cells_across(groups: Groups, max_speakers: int, rng: np.random.Generator) -> Cells:
    """X is of another speaker than A and B; of more speakers so many are drawn for each A."""
    alike = defaultdict(list)
    keys = list(zip(groups.contexts.tolist(), groups.phones.tolist(), strict=True))
    for group, key in enumerate(keys):
        alike[key].append(group)
    found = []
    for block in groups.blocks:
        for a in block:
            others = np.array([group for group in alike[keys[a]] if group != a], np.int64)
            xs = _at_most(max_speakers, others, rng).tolist()
            found += [(a, b, x) for x in xs for b in block if b != a]
    return _cells(found)


def _cells(found: Iterator[tuple[int, int, int]] | list[tuple[int, int, int]]) -> Cells:
    return Cells(*np.array(list(found), np.int64).reshape(-1, 3).T)


def _codes(labels: Sequence[Any]) -> np.ndarray:
    code_of = {label: code for code, label in enumerate(sorted(set(labels)))}
    return np.array([code_of[label] for label in labels], np.int64)


def _at_most(size: int, members: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return members if len(members) <= size else np.sort(rng.choice(members, size, replace=False))
