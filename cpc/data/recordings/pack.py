"""Packed recordings, from which training reads windows. t samples, C channels."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32, Float64, Int64

from cpc.data.store.packed import PackedRows, bit_sums

LOUDEST = 32768
_SCALE = np.float32(1 / LOUDEST)


class PackedRecordings(PackedRows):
    """Recordings in one memory map: mono audio in int16, or channels of signals in float32."""

    @property
    def num_samples(self) -> np.ndarray:
        """`[n]` int64, length of each recording; 0 for a skipped one."""
        return self.lengths

    @property
    def statistics(self) -> tuple[float, float]:
        """Mean and standard deviation over all samples of audio, exact; an error if no recording holds a sample."""
        if not self.lengths.any():
            raise ValueError(f"none of the {len(self)} recordings holds a sample, so they have no statistics")
        mean, std = self.statistics_over(LOUDEST)
        return mean.item(), std.item()

    def read(self, row: int, start: int = 0, num_samples: int | None = None) -> Float32[np.ndarray, "t ..."]:
        """Return samples, `[t]` in [-1, 1] or `[t, C]`, NaN if missing; fewer than `num_samples` only at the end."""
        if start < 0:
            raise ValueError(f"start={start}, but the first sample of a recording has index 0")
        if self._view is not None:
            stored, columns, factors = self._view
            return (stored.read(row, start, num_samples)[:, columns] * factors).astype(np.float32)
        stop = int(self.lengths[row])
        if num_samples is not None:
            stop = min(start + num_samples, stop)
        offset = self._offsets[row]
        stored_samples = self.elements[offset + start : offset + max(start, stop)]
        return stored_samples if self.shape else np.multiply(stored_samples, _SCALE, dtype=np.float32)

    def converted(self, columns: Sequence[int], factors: Float64[np.ndarray, " C"] | None) -> "PackedRecordings":
        """Return a view that reads these columns, multiplied by these factors (None: as they are)."""
        view = self.subset(np.arange(len(self)))
        view.shape = (len(columns),)
        view._view = (self, list(columns), np.ones(len(columns)) if factors is None else factors)
        return view

    def _open(self, index: Mapping[str, Any]) -> None:
        super()._open(index)
        self.sample_rate_hz: Any = index["sample_rate_hz"]
        self.channels = [str(name) for name in index.get("channels", ())]
        self._view: tuple[PackedRecordings, list[int], np.ndarray] | None = None
        if not 0 < self.sample_rate_hz < math.inf:
            raise ValueError(f"its samples are of {self.sample_rate_hz} Hz")
        if self.shape != ((len(self.channels),) if self.channels else ()):
            raise ValueError(f"its samples are {list(self.shape)} of {len(self.channels)} channels")


class ArraySignals:
    """Recordings in memory, with the interface of `PackedRecordings`."""

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


PackedAudio = PackedRecordings  # the public name
