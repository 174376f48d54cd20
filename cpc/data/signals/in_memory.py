"""Arrays as recordings: what a pack offers to windows, without a file. T samples, C channels."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float32, Int64

from cpc.data.store.statistics import bit_sums


class ArraySignals:
    """Recordings in memory, with the interface of `PackedRecordings`.

    Args:
        arrays: recordings `[T, C]`, NaN where missing.
    """

    def __init__(self, arrays: Sequence[Float32[np.ndarray, "_ C"]]) -> None:
        self.arrays = arrays
        self.num_samples = np.array([len(array) for array in arrays], np.int64)
        self.shape = (arrays[0].shape[1],)

    def read(self, row: int, start: int = 0, num_samples: int | None = None) -> Float32[np.ndarray, "t C"]:
        """Return samples of a recording; fewer than `num_samples` at its end, all to the end if it is None."""
        return self.arrays[row][start : None if num_samples is None else start + num_samples]

    def content(self, rows: Sequence[int] | np.ndarray) -> Int64[np.ndarray, "n columns"]:
        """Return length and sums of bit patterns of these recordings, as `PackedRecordings.content` does."""
        arrays = [np.ascontiguousarray(self.arrays[row], np.float32) for row in rows]
        return np.array([[len(array), *bit_sums(array).ravel()] for array in arrays], np.int64)
