"""Arrays as recordings: what a pack offers to windows, without a file. T samples, C channels."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float32, Int64

from cpc.data.signals.labels import Labels
from cpc.data.store.statistics import bit_sums


class ArraySignals:
    """Recordings in memory, with the interface of `PackedSignals`.

    Args:
        arrays: recordings `[T, C]`, NaN where missing.
    """

    def __init__(self, arrays: Sequence[Float32[np.ndarray, "_ C"]]) -> None:
        self.arrays = arrays
        self.lengths = np.array([len(array) for array in arrays], np.int64)
        self.shape = (arrays[0].shape[1],)

    def read(self, row: int, start: int = 0, num_samples: int | None = None) -> Float32[np.ndarray, "t C"]:
        """Return samples of a recording; fewer than `num_samples` at its end, all to the end if it is None."""
        return self.arrays[row][start : None if num_samples is None else start + num_samples]

    def content(self, rows: Sequence[int] | np.ndarray) -> Int64[np.ndarray, "n columns"]:
        """Return length and sums of bit patterns of these recordings, as `PackedSignals.content` does."""
        arrays = [np.ascontiguousarray(self.arrays[row], np.float32) for row in rows]
        return np.array([[len(array), *bit_sums(array).ravel()] for array in arrays], np.int64)


@dataclass(frozen=True)
class ArrayRecordings:
    """Recordings whose samples are decoded, with the interface of `Recordings`.

    Attributes:
        channels: names of the channels.
        sample_rate_hz: samples per second.
        splits: split of each recording.
        groups: subject of each recording, "" if unknown.
        names: name of each recording, for messages.
        labels: task -> labels.
        missing: `refuse` if all samples are known, else `mask`.
        source: where they come from, for messages.
        units: unit of each channel, "" if unknown; empty: all are unknown.
    """

    channels: Sequence[str]
    sample_rate_hz: float
    splits: Sequence[str]
    groups: Sequence[str]
    names: Sequence[str]
    labels: dict[str, Labels] = field(default_factory=dict)
    missing: str = "refuse"
    source: str = "arrays"
    units: Sequence[str] = ()
