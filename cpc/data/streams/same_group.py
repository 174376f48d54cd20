"""Batches of a few groups, such as speakers, each with several items."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from cpc.data.store.folders import refuse
from cpc.data.streams.stream import BatchStream, digest

# Swaps per batch. With 20 swaps every pair of 10 groups occurs in some batch (test_batches.py).
_NUM_SWAPS = 20


class SameGroupBatches(BatchStream):
    """Batches of `groups_per_batch` groups, with equally many draws from each group.

    Here a batch is the batch of all ranks together. Each rank takes its share of the draws, from any group.

    Each pass yields every slot of every item at least once; slots of small groups are repeated where parts of a batch,
    or batches of different groups, need them.

    Args:
        group_ids: `[num_items]` the group of each item.
        require_distinct_items: require two items or more in a group's part of a batch. `same_speaker_excluding` needs
            this, because draws from one item share the sequence id and are not negatives of each other.
        stream: arguments of `BatchStream`. The batch size of all ranks together is a multiple of `groups_per_batch`, at
            least 2 per group.

    Raises:
        ValueError: if an argument is out of range, an item's group is unknown (-1), there are fewer groups than
            `groups_per_batch`, or a group has a single item under `require_distinct_items`.
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
        ranks = f" of {self.world_size} processes" if self.world_size > 1 else ""
        if groups_per_batch < 1 or batch_size % groups_per_batch or batch_size < 2 * groups_per_batch:
            sizes = f"batch_size={self.batch_size} with {option}={groups_per_batch}"
            raise ValueError(f"{sizes}: the batch{ranks} must divide into equal parts of at least 2 windows")
        group_ids = np.asarray(group_ids, np.int64)
        if len(group_ids) != len(self._num_slots):
            raise ValueError(f"group_ids has {len(group_ids)} entries for {len(self._num_slots)} {item}s")
        self._items = np.flatnonzero(self._num_slots)
        if num_unknown := int((group_ids[self._items] < 0).sum()):
            found = f"{num_unknown} of {len(self._items)} {item}s have no {group}"
            raise ValueError(f"{found}, but batches of the same {group} need one: name it, or choose uniform batches")
        groups, self._group_of_item = np.unique(group_ids[self._items], return_inverse=True)
        self._num_items = np.bincount(self._group_of_item)
        if len(groups) < groups_per_batch:
            raise ValueError(f"{option}={groups_per_batch}, but there are only {len(groups)} {group}s")
        single = groups[self._num_items == 1].tolist() if require_distinct_items else []
        if single:
            named = [str(i) if group_names is None else group_names[i] for i in single]
            advice = f"same_speaker_excluding needs two {item}s: choose another strategy (`loss.negatives`)"
            refuse(f"{group}s have a single {item}", named, advice)
        self.groups_per_batch = groups_per_batch
        self._require_distinct_items = require_distinct_items
        self.fingerprint |= {
            option: groups_per_batch,
            f"require_distinct_{item}s": require_distinct_items,
            f"{group}s": digest(group_ids),
        }
        self._part = batch_size // groups_per_batch
        self._num_parts = self._count_parts()
        # The parts of a group go to different batches, so a pass has at least as many batches as a group has parts.
        num_parts = int(self._num_parts.sum())
        self._batches_per_pass = max(-(-num_parts // groups_per_batch), int(self._num_parts.max()))
        self.draws_per_pass = self._batches_per_pass * batch_size

    def _count_parts(self) -> np.ndarray:
        """Return the number of batch parts that the slots of each group take in a pass."""
        slots = self._num_slots[self._items]
        num_parts = -(-np.bincount(self._group_of_item, slots).astype(np.int64) // self._part)
        if self._require_distinct_items:  # every part has a draw of another item than the longest
            longest = np.zeros_like(num_parts)
            np.maximum.at(longest, self._group_of_item, slots)
            num_parts = np.maximum(num_parts, -(-longest // (self._part - 1)))
        return num_parts

    def _draw_items(self, rng: np.random.Generator) -> np.ndarray:
        parts, group_of_part = self._draw_parts(rng)
        return parts[self._assign_parts(rng, group_of_part)].reshape(-1)

    def _draw_parts(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return the items of each part, `[num_parts, draws per part]`, and its group, `[num_parts]`, ascending."""
        # Items sorted by group, in random order within a group; from here on an item is its index in `order`.
        shuffled = rng.permutation(len(self._items))
        order = shuffled[np.argsort(self._group_of_item[shuffled], kind="stable")]
        first_item = _starts(self._num_items)
        item_of_slot = np.repeat(np.arange(len(order)), self._num_slots[self._items[order]])
        group_of_slot = self._group_of_item[order][item_of_slot]
        num_slots = np.bincount(group_of_slot)
        first_slot = _starts(num_slots)

        # Slots go to parts in turn, so that slots of one item go to different parts.
        position = np.arange(len(item_of_slot)) - first_slot[group_of_slot]
        num_parts = self._num_parts[group_of_slot]
        parts = np.full((self._num_parts.sum(), self._part), -1)
        parts[_starts(self._num_parts)[group_of_slot] + position % num_parts, position // num_parts] = item_of_slot
        group_of_part = np.repeat(np.arange(len(self._num_parts)), self._num_parts)

        part, column = np.nonzero(parts < 0)
        group = group_of_part[part]
        parts[part, column] = item_of_slot[first_slot[group] + rng.integers(0, num_slots[group])]
        if self._require_distinct_items:
            # If a part has a single item, its last slot is a repeated one, which a slot of another item replaces.
            (single,) = np.nonzero((parts == parts[:, :1]).all(axis=1))
            group = group_of_part[single]
            step = rng.integers(1, self._num_items[group])
            offset = (parts[single, 0] - first_item[group] + step) % self._num_items[group]
            parts[single, -1] = first_item[group] + offset
        return self._items[order[parts]], group_of_part

    def _assign_parts(self, rng: np.random.Generator, group_of_part: np.ndarray) -> np.ndarray:
        """Return the parts of each batch, `[batches, groups_per_batch]`, of different groups; use all parts."""
        rank_of_group = rng.permutation(len(self._num_parts))
        order = rng.permutation(len(group_of_part))
        order = order[np.argsort(rank_of_group[group_of_part[order]], kind="stable")]
        # Fill column after column of all batches: a group has at most as many parts as there are batches, one for each.
        batch_parts = np.full(self.groups_per_batch * self._batches_per_pass, -1)
        batch_parts[: len(order)] = order
        batch_parts = rng.permutation(batch_parts.reshape(self.groups_per_batch, -1).T)
        first_part = _starts(self._num_parts)
        for column in range(self.groups_per_batch):
            (empty,) = np.nonzero(batch_parts[:, column] < 0)
            while len(empty):
                group = rng.integers(0, len(self._num_parts), len(empty))
                is_there = (group_of_part[batch_parts[empty, :column]] == group[:, None]).any(axis=1)
                part = first_part[group] + rng.integers(0, self._num_parts[group])
                batch_parts[empty[~is_there], column] = part[~is_there]
                empty = empty[is_there]
        self._mix(rng, batch_parts, group_of_part)
        return batch_parts

    def _mix(self, rng: np.random.Generator, batch_parts: np.ndarray, group_of_part: np.ndarray) -> None:
        """Swap parts between random batches, so that all pairs of groups occur; no batch gets a group twice."""
        half = len(batch_parts) // 2
        for _ in range(_NUM_SWAPS if self.groups_per_batch > 1 else 0):
            one, other = rng.permutation(len(batch_parts))[: 2 * half].reshape(2, half)
            column_of_one, column_of_other = rng.integers(0, self.groups_per_batch, (2, half))
            part_of_one, part_of_other = batch_parts[one, column_of_one], batch_parts[other, column_of_other]
            swaps = ~(
                (group_of_part[batch_parts[one]] == group_of_part[part_of_other][:, None]).any(axis=1)
                | (group_of_part[batch_parts[other]] == group_of_part[part_of_one][:, None]).any(axis=1)
            )
            batch_parts[one[swaps], column_of_one[swaps]] = part_of_other[swaps]
            batch_parts[other[swaps], column_of_other[swaps]] = part_of_one[swaps]


def _starts(counts: np.ndarray) -> np.ndarray:
    """Return the starts of consecutive segments with these lengths."""
    return np.cumsum(counts) - counts
