"""Uniform batches: each pass yields every slot of every item once, in random order."""

from typing import Annotated, Any

import numpy as np

from cpc.config.argument_rules import Range, checked
from cpc.data.streams.stream import BatchStream, digest

# Number of runs of neighbouring items that are shuffled together. Neighbours often share a speaker, who then has 1/16
# of the draws.
_NUM_RUNS = 16


class UniformBatches(BatchStream):
    """Batches drawn uniformly from all items, or from a part of the items that changes during a pass.

    Args:
        slots_at_once: number of slots that are shuffled together; None: all. These slots come from sixteen random runs
            of neighbouring items, so that the data read at a time fit into a cache.
        stream, options: arguments of `BatchStream`.
    """

    @checked
    def __init__(
        self, *stream: Any, slots_at_once: Annotated[int, Range(_NUM_RUNS)] | None = None, **options: Any
    ) -> None:
        super().__init__(*stream, **options)
        self._slots_at_once = slots_at_once
        if slots_at_once is not None:
            self.fingerprint["slots_at_once"] = slots_at_once

    def _draw_items(self, rng: np.random.Generator) -> np.ndarray:
        slots = np.repeat(np.arange(len(self._num_slots)), self._num_slots)
        if self._slots_at_once is None:
            return rng.permutation(slots)
        slots = np.roll(slots, rng.integers(len(slots)))  # cut at other positions in each pass
        runs = np.array_split(slots, -(-len(slots) * _NUM_RUNS // self._slots_at_once))
        order = rng.permutation(len(runs))
        chunks = (order[first : first + _NUM_RUNS] for first in range(0, len(order), _NUM_RUNS))
        return np.concatenate([rng.permutation(np.concatenate([runs[run] for run in chunk])) for chunk in chunks])


class SpreadBatches(UniformBatches):
    """Batches of every item once per pass, with the items of a sequence spread over the pass.

    A batch holds two items of a sequence only if the sequence has more items than the pass has batches, or if the batch
    spans two passes.
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
