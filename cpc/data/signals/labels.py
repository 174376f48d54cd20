"""Labels of recordings: one per recording, per interval of time, or per sample; all are read as codes of samples.

A code is an index in the sorted names of the classes; -1 is no label.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Int64

from cpc.data.signals.rates import RATE_ROUNDING
from cpc.data.store.label_times import check_label_ends

_SLACK = 1e-6  # in samples: a time that is rounded this much still lies on its sample


class Labels(ABC):
    """The labels of one task for all recordings of a source."""

    is_checked = False

    @property
    @abstractmethod
    def classes(self) -> list[str]:
        """The name of each code."""

    @abstractmethod
    def codes(self, row: int, start_sample: int, num_samples: int) -> Int64[np.ndarray, " num_samples"]:
        """Return the code of each of `num_samples` samples of a recording; -1 where there is no label."""

    def check(self, title: str, names: Sequence[str], num_samples: np.ndarray) -> None:  # noqa: B027 - no times
        """Raise an error on times that do not fit the recordings (see `cpc.data.store.label_times`).

        Args:
            title: name of the labels, for messages.
            names: names of the recordings.
            num_samples: length of each recording; 0 if it was left out.
        """


class RecordingLabels(Labels):
    """One label per recording.

    Args:
        names: label of each recording; "" if it has none.
        classes: the name of each code; the sorted names unless given.

    Attributes:
        recording_codes: `[num_recordings]` int64, code of each recording.
    """

    def __init__(self, names: Sequence[str], classes: Sequence[str] | None = None) -> None:
        self._classes = sort_names(names) if classes is None else list(classes)
        self.recording_codes = encode_names(names, self._classes)

    @property
    def classes(self) -> list[str]:
        """The name of each code."""
        return self._classes

    def codes(self, row: int, start_sample: int, num_samples: int) -> Int64[np.ndarray, " num_samples"]:
        """Return the recording's code, once per sample."""
        return np.full(num_samples, self.recording_codes[row], np.int64)


@dataclass(frozen=True)
class Interval:
    """A label from `start_seconds` (included) to `end_seconds` (excluded); equal times mark one sample."""

    start_seconds: float
    end_seconds: float
    label: str


class IntervalLabels(Labels):
    """Intervals with a label. Of intervals that overlap, the one that starts later counts.

    Args:
        intervals: the intervals of each recording, in any order.
        sample_rates_hz: rate of each recording by its own clock.
    """

    def __init__(self, intervals: Sequence[Sequence[Interval]], sample_rates_hz: Sequence[float]) -> None:
        self._rates = np.array(sample_rates_hz, np.float64)
        self.intervals = [sorted(row, key=lambda interval: interval.start_seconds) for row in intervals]
        self._classes = sort_names(interval.label for row in intervals for interval in row)
        self._codes = [encode_names([interval.label for interval in row], self._classes) for row in self.intervals]
        self._extents = [_extents(row, rate) for row, rate in zip(self.intervals, sample_rates_hz, strict=True)]

    @property
    def classes(self) -> list[str]:
        """The name of each code."""
        return self._classes

    def codes(self, row: int, start_sample: int, num_samples: int) -> Int64[np.ndarray, " num_samples"]:
        """Return the code of the interval that each sample lies in."""
        codes = np.full(num_samples, -1, np.int64)
        first, end = self._extents[row]
        touched = np.flatnonzero((first < start_sample + num_samples) & (end > start_sample))
        for index in touched.tolist():
            codes[max(0, first[index] - start_sample) : end[index] - start_sample] = self._codes[row][index]
        return codes

    def check(self, title: str, names: Sequence[str], num_samples: np.ndarray) -> None:  # noqa: D102
        rows = [row for row, length in enumerate(num_samples) if length and self.intervals[row]]
        times = [np.array([(each.start_seconds, each.end_seconds) for each in self.intervals[row]]) for row in rows]
        check_label_ends(
            title,
            [names[row] for row in rows],
            np.array([each[:, 1].max() for each in times]),
            np.array([np.ptp(each, axis=1).sum() for each in times]),
            num_samples[rows] / self._rates[rows],
            noun="recording",
            advice="times are seconds from the first sample of a recording: correct them, or remove labels of other "
            "recordings",
            rate_error=RATE_ROUNDING,
        )


class SampleLabels(Labels):
    """One label per sample.

    Args:
        load: returns the codes of each recording, `[T]` integers, negative where there is no label, and the classes. It
            is called when labels are first needed, and can be pickled.
    """

    def __init__(self, load: Callable[[], tuple[list[np.ndarray], list[str]]]) -> None:
        self._load = load

    @property
    def classes(self) -> list[str]:
        """The name of each code."""
        return self._loaded[1]

    def codes(self, row: int, start_sample: int, num_samples: int) -> Int64[np.ndarray, " num_samples"]:
        """Return the code of each sample; -1 beyond the recording's end."""
        codes = np.full(num_samples, -1, np.int64)
        known = self._loaded[0][row][start_sample : start_sample + num_samples]
        codes[: len(known)] = np.maximum(known, -1)
        return codes

    @cached_property
    def _loaded(self) -> tuple[list[np.ndarray], list[str]]:
        return self._load()


def sort_names(names: Iterable[str]) -> list[str]:
    """Return the different names but "", sorted; whole numbers are sorted by value, and negative ones are left out."""
    different = set(names) - {""}
    if different and all(_is_whole(name) for name in different):
        return sorted((name for name in different if int(name) >= 0), key=int)
    return sorted(different)


def encode_names(names: Sequence[str], classes: Sequence[str]) -> Int64[np.ndarray, " n"]:
    """Return the index of each name in `classes`, -1 for any other name."""
    code_of: Mapping[str, int] = {name: code for code, name in enumerate(classes)}
    return np.array([code_of.get(name, -1) for name in names], dtype=np.int64)


def _is_whole(name: str) -> bool:
    return name.removeprefix("-").isdecimal() and name.isascii()


def _extents(intervals: Sequence[Interval], sample_rate_hz: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the first sample of each interval and the sample after its last one, `[n]` int64 each."""
    times = np.array([(interval.start_seconds, interval.end_seconds) for interval in intervals]).reshape(-1, 2)
    first, end = np.ceil(times * sample_rate_hz - _SLACK).astype(np.int64).T
    is_mark = times[:, 0] == times[:, 1]
    first = np.where(is_mark, np.rint(times[:, 0] * sample_rate_hz), first).astype(np.int64)
    return first, np.where(is_mark, first + 1, end)
