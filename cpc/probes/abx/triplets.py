"""The triplets of an ABX test. A cell is three groups of items: one for X, one for A, one for B.

A group holds the items of one label: context (the phones before and after, or any context), speaker and phone. Any
items A, B and X of a cell form a triplet, unless X is the same item as A.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, permutations
from typing import Annotated, Any, Literal, get_args

import numpy as np

from cpc.config.argument_rules import Count, Range, Seed, check_fields
from cpc.data.audio.items import Items

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
