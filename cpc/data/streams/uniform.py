"""Uniform batches: each pass yields every slot of every item once, in random order."""

from typing import Annotated, Any

import numpy as np

from cpc.config.argument_rules import Range, checked
from cpc.data.streams.stream import BatchStream

# Number of runs of neighbouring items that are shuffled together. Neighbours often share a speaker, who then has 1/16
# of the draws.
_NUM_RUNS = 16


class UniformBatches(BatchStream):
    """Batches drawn uniformly from all items, or from a part of the items that changes during a pass.

    Args:
        slots_at_once: number of slots that are shuffled together; None: all. These slots come from sixteen random runs
            of neighbouring items, so that the data read at a time fit into a cache.
        stream, options: arguments of `BatchStream`.

    Raises:
        ValueError: if `slots_at_once` is less than 16.
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
