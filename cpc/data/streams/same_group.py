"""Batches of few groups each (the speakers of audio), so that negatives come from the same group."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from cpc.data.streams.stream import BatchStream, digest

# Swaps that each batch takes part in: 20 mix 10 groups so far that all pairs of them meet (test_batches.py).
_NUM_SWAPS = 20


class SameGroupBatches(BatchStream):
    """Batches that hold `groups_per_batch` groups, with equally many draws of each.

    A batch is that of all ranks together: each takes its share of the draws, whosever they are.

    In each pass every slot of every item comes at least once. A group whose slots do not fill its part of a batch adds
    further draws of its own; where groups differ too much in size for batches of different groups, smaller ones come
    again.

    Args:
        group_ids: `[num_items]` the group of each item.
        groups_per_batch: different groups in a batch.
        require_distinct_items: a group's part of a batch holds at least two items. `same_speaker_excluding` needs it:
            draws of one item share the sequence id, and would leave no negative.
        group_names: names of the groups by id, for messages.
        nouns: what a group and an item are, for messages.
        stream: as of `BatchStream`; on all ranks together a multiple of `groups_per_batch`, at least 2 per group.

    Raises:
        ValueError: if an argument is out of range, an item's group is unknown (-1), there are fewer groups than
            `groups_per_batch`, or `require_distinct_items` meets a group with a single item.
    """

    def __init__(
        self,
        group_ids: np.ndarray,
        groups_per_batch: int = 1,
        require_distinct_items: bool = True,
        group_names: Sequence[str] | None = None,
        nouns: tuple[str, str] = ("group", "item"),
        **stream: Any,
    ) -> None:
        super().__init__(**stream)
        batch_size, (group, item) = self.batch_size * self.world_size, nouns
        option = f"{group}s_per_batch"
        of_ranks = f" of {self.world_size} processes" if self.world_size > 1 else ""
        if groups_per_batch < 1 or batch_size % groups_per_batch or batch_size < 2 * groups_per_batch:
            raise ValueError(
                f"batch_size={self.batch_size} with {option}={groups_per_batch}: the batch{of_ranks} must divide into "
                f"equal parts of at least 2 windows; change `batch_size` or `{option}`"
            )
        group_ids = np.asarray(group_ids, np.int64)
        if len(group_ids) != len(self._num_slots):
            raise ValueError(f"group_ids has {len(group_ids)} entries for {len(self._num_slots)} {item}s")
        self._items = np.flatnonzero(self._num_slots)
        num_unknown = int((group_ids[self._items] < 0).sum())
        if num_unknown:
            raise ValueError(
                f"{num_unknown} of {len(self._items)} {item}s have no {group}, which batches of the same {group} need; "
                f"name their {group} (in the manifest's column), or choose uniform batches"
            )
        groups, self._group_of_item = np.unique(group_ids[self._items], return_inverse=True)
        self._num_items = np.bincount(self._group_of_item)
        if len(groups) < groups_per_batch:
            raise ValueError(
                f"{option}={groups_per_batch}, but there are {len(groups)} {group}s; lower `{option}` to that"
            )
        single = groups[self._num_items == 1].tolist() if require_distinct_items else []
        if single:
            named = [str(each) if group_names is None else group_names[each] for each in single[:5]]
            more = f" and {len(single) - 5} more" if len(single) > 5 else ""
            raise ValueError(
                f"{group}s with a single {item}: {', '.join(named)}{more}. Windows of one {item} are no negatives of "
                f"each other under same_speaker_excluding: leave these {group}s out, cut their {item}s into several, "
                "or choose another strategy (model.loss.init_args.negatives)"
            )
        self.groups_per_batch = groups_per_batch
        self._require_distinct_items = require_distinct_items
        self._fingerprint |= {
            option: groups_per_batch,
            f"require_distinct_{item}s": require_distinct_items,
            f"{group}s": digest(group_ids),
        }
        self._part = batch_size // groups_per_batch
        self._num_parts = self._count_parts()
        # Each group's parts go to different batches, so there are at least as many batches as parts of one group.
        num_parts = int(self._num_parts.sum())
        self._batches_per_pass = max(-(-num_parts // groups_per_batch), int(self._num_parts.max()))
        self.draws_per_pass = self._batches_per_pass * batch_size

    def _count_parts(self) -> np.ndarray:
        """How many parts of a batch each group's slots take in a pass."""
        slots = self._num_slots[self._items]
        num_parts = -(-np.bincount(self._group_of_item, slots).astype(np.int64) // self._part)
        if self._require_distinct_items:
            # Dealt out evenly, even the longest item leaves one place in every part to another one.
            longest = np.zeros_like(num_parts)
            np.maximum.at(longest, self._group_of_item, slots)
            num_parts = np.maximum(num_parts, -(-longest // (self._part - 1)))
        return num_parts

    def _draw_items(self, rng: np.random.Generator) -> np.ndarray:
        parts, group_of_part = self._draw_parts(rng)
        return parts[self._seat_parts(rng, group_of_part)].reshape(-1)

    def _draw_parts(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """`[num_parts, draws per part]` items, and `[num_parts]` the group of each part, in ascending order."""
        # Items by group, each group's in random order; from here on an item is its position in `order`.
        shuffled = rng.permutation(len(self._items))
        order = shuffled[np.argsort(self._group_of_item[shuffled], kind="stable")]
        first_item = _starts(self._num_items)
        item_of_slot = np.repeat(np.arange(len(order)), self._num_slots[self._items[order]])
        group_of_slot = self._group_of_item[order][item_of_slot]
        num_slots = np.bincount(group_of_slot)
        first_slot = _starts(num_slots)

        # Slots are dealt out like cards, so that those of one item go to different parts.
        position = np.arange(len(item_of_slot)) - first_slot[group_of_slot]
        num_parts = self._num_parts[group_of_slot]
        parts = np.full((self._num_parts.sum(), self._part), -1)
        parts[_starts(self._num_parts)[group_of_slot] + position % num_parts, position // num_parts] = item_of_slot
        group_of_part = np.repeat(np.arange(len(self._num_parts)), self._num_parts)

        part, place = np.nonzero(parts < 0)
        group = group_of_part[part]
        parts[part, place] = item_of_slot[first_slot[group] + rng.integers(0, num_slots[group])]
        if self._require_distinct_items:
            # Only a place that was left over can be the last one of such a part: no slot is lost.
            (lonely,) = np.nonzero((parts == parts[:, :1]).all(axis=1))
            group = group_of_part[lonely]
            step = rng.integers(1, self._num_items[group])
            number = (parts[lonely, 0] - first_item[group] + step) % self._num_items[group]
            parts[lonely, -1] = first_item[group] + number
        return self._items[order[parts]], group_of_part

    def _seat_parts(self, rng: np.random.Generator, group_of_part: np.ndarray) -> np.ndarray:
        """`[batches, groups_per_batch]` part numbers: every part at least once, different groups in each batch."""
        rank_of_group = rng.permutation(len(self._num_parts))
        order = rng.permutation(len(group_of_part))
        order = order[np.argsort(rank_of_group[group_of_part[order]], kind="stable")]
        # Seat by seat through all batches: a group's parts are neighbours and no more than there are batches, so no
        # two of them meet.
        seats = np.full(self.groups_per_batch * self._batches_per_pass, -1)
        seats[: len(order)] = order
        seats = rng.permutation(seats.reshape(self.groups_per_batch, -1).T)
        first_part = _starts(self._num_parts)
        for seat in range(self.groups_per_batch):
            (empty,) = np.nonzero(seats[:, seat] < 0)
            while len(empty):
                group = rng.integers(0, len(self._num_parts), len(empty))
                is_there = (group_of_part[seats[empty, :seat]] == group[:, None]).any(axis=1)
                part = first_part[group] + rng.integers(0, self._num_parts[group])
                seats[empty[~is_there], seat] = part[~is_there]
                empty = empty[is_there]
        self._mix(rng, seats, group_of_part)
        return seats

    def _mix(self, rng: np.random.Generator, seats: np.ndarray, group_of_part: np.ndarray) -> None:
        """Swaps parts between random batches, wherever both stay without a double, so that all groups meet."""
        half = len(seats) // 2
        for _ in range(_NUM_SWAPS if self.groups_per_batch > 1 else 0):
            one, other = rng.permutation(len(seats))[: 2 * half].reshape(2, half)
            seat_of_one, seat_of_other = rng.integers(0, self.groups_per_batch, (2, half))
            part_of_one, part_of_other = seats[one, seat_of_one], seats[other, seat_of_other]
            swaps = ~(
                (group_of_part[seats[one]] == group_of_part[part_of_other][:, None]).any(axis=1)
                | (group_of_part[seats[other]] == group_of_part[part_of_one][:, None]).any(axis=1)
            )
            seats[one[swaps], seat_of_one[swaps]] = part_of_other[swaps]
            seats[other[swaps], seat_of_other[swaps]] = part_of_one[swaps]


def _starts(counts: np.ndarray) -> np.ndarray:
    """Where each of several consecutive stretches of these lengths begins."""
    return np.cumsum(counts) - counts
