"""Every item once in each pass, items of one sequence far apart: overlapping ones make poor negatives."""

from typing import Any

import numpy as np

from cpc.data.streams.stream import digest
from cpc.data.streams.uniform import UniformBatches


class SpreadBatches(UniformBatches):
    """Every item once in each pass, spread by sequence.

    Two items of a sequence meet in a batch only where the sequence holds more than one item per batch, or where passes
    meet.

    Args:
        sequence_ids: `[num_items]` equal for items of one sequence.
        noun: what an item is, for messages.
        stream: as of `BatchStream`, but for `num_slots`; all ranks together take one pass at most.

    Raises:
        ValueError: if an item would come twice in one step and be its own negative.
    """

    def __init__(self, sequence_ids: np.ndarray, *, noun: str = "item", **stream: Any) -> None:
        num_items = len(sequence_ids)
        super().__init__(np.ones(num_items), **stream)
        if self.batch_size * self.world_size > num_items:
            raise ValueError(
                f"batch_size={self.batch_size} on {self.world_size} processes is more than the {num_items} {noun}s "
                "there are, so that one would come twice and be its own negative: lower `batch_size`"
            )
        _, self._sequence = np.unique(sequence_ids, return_inverse=True)
        self._fingerprint["sequences"] = digest(self._sequence)

    def _draw_items(self, rng: np.random.Generator) -> np.ndarray:
        """Any order of the items, drawn apart: the n of a sequence come at equal distances, from a random start."""
        order = super()._draw_items(rng)
        num_items = len(order)
        place = np.empty(num_items, np.int64)  # of each item in that order
        place[order] = np.arange(num_items)
        _, first_items, sizes = np.unique(self._sequence, return_index=True, return_counts=True)
        # Items sorted by sequence, and within each as they were drawn: the turn of an item counts from the first.
        by_sequence = order[np.argsort(self._sequence[order], kind="stable")]
        turn = np.empty(num_items, np.int64)
        turn[by_sequence] = np.arange(num_items) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        start = place[first_items] / num_items  # uniform; for an item alone in its sequence, its place
        when = (turn + start[self._sequence]) / sizes[self._sequence]
        return np.argsort(when, kind="stable")
