"""Streams with every item once per pass. Items of a sequence are far apart, since overlapping negatives are poor."""

from typing import Any

import numpy as np

from cpc.data.streams.stream import digest
from cpc.data.streams.uniform import UniformBatches


class SpreadBatches(UniformBatches):
    """Batches of every item once per pass, with the items of a sequence spread over the pass.

    A batch holds two items of a sequence only if the sequence has more items than the pass has batches, or if the batch
    spans two passes.

    Args:
        sequence_ids: `[num_items]` equal for items of one sequence.
        noun: noun for an item, for messages.
        stream: arguments of `BatchStream` except `num_slots`; the batch of all ranks is at most one pass.

    Raises:
        ValueError: if an item would occur twice in one step and be its own negative.
    """

    def __init__(self, sequence_ids: np.ndarray, *, noun: str = "item", **stream: Any) -> None:
        num_items = len(sequence_ids)
        super().__init__(np.ones(num_items), **stream)
        if self.batch_size * self.world_size > num_items:
            raise ValueError(
                f"batch_size={self.batch_size} on {self.world_size} processes exceeds the {num_items} {noun}s, so one "
                "of them would come twice and be its own negative: lower `batch_size`"
            )
        _, self._sequence = np.unique(sequence_ids, return_inverse=True)
        self.fingerprint["sequences"] = digest(self._sequence)

    def _draw_items(self, rng: np.random.Generator) -> np.ndarray:
        """Draw the order of the items. The n items of a sequence are at equal distances, from a random start."""
        order = super()._draw_items(rng)
        num_items = len(order)
        position = np.empty(num_items, np.int64)  # sequence of each item in `order`
        position[order] = np.arange(num_items)
        _, first_items, sizes = np.unique(self._sequence, return_index=True, return_counts=True)
        # Items sorted by sequence, and by `order` within a sequence; `turn` counts the items of each sequence from 0.
        sorted_items = order[np.argsort(self._sequence[order], kind="stable")]
        turn = np.empty(num_items, np.int64)
        turn[sorted_items] = np.arange(num_items) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        start = position[first_items] / num_items  # uniform starts, which keep `order` for sequences of one item
        sort_key = (turn + start[self._sequence]) / sizes[self._sequence]
        return np.argsort(sort_key, kind="stable")
