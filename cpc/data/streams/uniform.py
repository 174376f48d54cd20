"""Batches drawn uniformly: in each pass every slot of every item comes once, in random order."""

import numpy as np

from cpc.data.streams.stream import BatchStream


class UniformBatches(BatchStream):
    """Batches drawn uniformly from all items; arguments and errors are those of `BatchStream`."""

    def _draw_items(self, rng: np.random.Generator) -> np.ndarray:
        return rng.permutation(np.repeat(np.arange(len(self._num_slots)), self._num_slots))
