"""Labels of recordings, read as codes of samples. A code is an index in the names of the classes; -1 is no label.

n recordings, m runs of samples with one code.
"""

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, Int64

from cpc.data.store.folders import name_a_few

RATE_ROUNDING = 1e-3  # relative; rates that come so near to whole numbers are meant to be whole
_SLACK = 1e-6  # in samples: a time that is rounded this much still lies on its sample

# The first sample of each run, `[m]`, and the codes before the first run and of each run, `[m + 1]`.
Runs = tuple[np.ndarray, np.ndarray]
Content = tuple[Sequence[str], Sequence[Runs]]  # classes, and the runs of each recording


class Segment(NamedTuple):
    """A label with its start and end, in seconds from the start of the recording; equal times mark one sample."""

    start_seconds: float
    end_seconds: float
    label: str


class RecordingLabels:
    """The labels of one task for all recordings of a source.

    Args:
        content: classes and runs, or a function that returns them when they are first needed, and can be pickled.
        segments: the segments that runs were made from; empty if labels have no times.
        sample_rates_hz: rate of each recording by its own clock, if there are segments.
    """

    def __init__(
        self,
        content: Content | Callable[[], Content],
        *,
        vary_within: bool = True,
        segments: Sequence[Sequence[Segment]] = (),
        sample_rates_hz: Sequence[float] = (),
    ) -> None:
        self._content, self.vary_within = content, vary_within
        self._segments, self._rates = segments, np.array(sample_rates_hz, np.float64)
        self.is_checked = False

    @property
    def classes(self) -> Sequence[str]:
        """The name of each code."""
        return self._loaded[0]

    def codes(self, row: int, start_sample: int, num_samples: int) -> Int64[np.ndarray, " num_samples"]:
        """Return the code of each of `num_samples` samples of a recording; -1 where there is no label."""
        return self.codes_at(row, np.arange(start_sample, start_sample + num_samples))

    def codes_at(self, row: int, samples: Int64[np.ndarray, " t"]) -> Int64[np.ndarray, " t"]:
        """Return the codes of these samples of a recording; -1 where there is no label."""
        firsts, codes = self._loaded[1][row]
        return codes[np.searchsorted(firsts, samples, side="right")].astype(np.int64, copy=False)

    def check(self, title: str, names: Sequence[str], num_samples: np.ndarray) -> None:
        """Raise an error, once, on times that do not fit the lengths of recordings (see `check_label_ends`)."""
        if self.is_checked:
            return
        rows = [row for row, segments in enumerate(self._segments) if segments and num_samples[row]]
        times = [np.array([segment[:2] for segment in self._segments[row]]) for row in rows]
        check_label_ends(
            title,
            [names[row] for row in rows],
            np.array([each[:, 1].max() for each in times]),
            np.array([np.ptp(each, axis=1).sum() for each in times]),
            num_samples[rows] / self._rates[rows],
            noun="recording",
            advice="times are seconds from the first sample of a recording",
            rate_error=RATE_ROUNDING,
        )
        self.is_checked = True

    @property
    def _loaded(self) -> Content:
        if callable(self._content):
            self._content = self._content()
        return self._content


def labels_of_recordings(names: Sequence[str], classes: Sequence[str] | None = None) -> RecordingLabels:
    """Return one label for each recording, "" if it has none; without `classes` these are the sorted names."""
    classes = sort_names(names) if classes is None else classes
    runs = [(np.zeros(1, np.int64), np.array([-1, code])) for code in encode_names(names, classes).tolist()]
    return RecordingLabels((classes, runs), vary_within=False)


def labels_of_segments(segments: Sequence[Sequence[Segment]], sample_rates_hz: Sequence[float]) -> RecordingLabels:
    """Return the labels of the segments of each recording, in any order; where some overlap, the later start counts."""
    segments = [sorted(row, key=lambda segment: segment.start_seconds) for row in segments]
    classes = sort_names(segment.label for row in segments for segment in row)
    runs = [_runs_of_segments(row, rate, classes) for row, rate in zip(segments, sample_rates_hz, strict=True)]
    return RecordingLabels((classes, runs), segments=segments, sample_rates_hz=sample_rates_hz)


def runs_of_samples(codes: Int[np.ndarray, " t"]) -> Runs:
    """Return the runs of the codes of samples, negative where there is no label."""
    firsts = np.flatnonzero(np.diff(codes, prepend=codes[:1] - 1))
    return np.append(firsts, len(codes)), np.concatenate([[-1], np.maximum(codes[firsts], -1), [-1]])


def sort_names(names: Iterable[str]) -> list[str]:
    """Return the different names but "", sorted; whole numbers are sorted by value, and negative ones are left out."""
    different = set(names) - {""}
    if different and all(name.removeprefix("-").isdecimal() and name.isascii() for name in different):
        return sorted((name for name in different if int(name) >= 0), key=int)
    return sorted(different)


def encode_names(names: Sequence[str], classes: Sequence[str]) -> Int64[np.ndarray, " n"]:
    """Return the index of each name in `classes`, -1 for any other name."""
    code_of = {name: code for code, name in enumerate(classes)}
    return np.array([code_of.get(name, -1) for name in names], dtype=np.int64)


def _runs_of_segments(segments: Sequence[Segment], sample_rate_hz: float, classes: Sequence[str]) -> Runs:
    times = np.array([segment[:2] for segment in segments]).reshape(-1, 2)
    first, end = np.ceil(times * sample_rate_hz - _SLACK).astype(np.int64).T
    is_mark = times[:, 0] == times[:, 1]
    first = np.where(is_mark, np.rint(times[:, 0] * sample_rate_hz), first).astype(np.int64)
    end = np.where(is_mark, first + 1, end)
    edges = np.unique(np.concatenate([first, end]))
    codes = np.full(len(edges) + 1, -1)
    spans = zip(np.searchsorted(edges, first) + 1, np.searchsorted(edges, end) + 1, strict=True)
    for span, code in zip(spans, encode_names([segment.label for segment in segments], classes), strict=True):
        codes[slice(*span)] = code
    return edges, codes


# Labels may end up to this time after their recording, because of an aligner's frames or a codec's padding.
MOST_SECONDS_AFTER_END = 0.05
# Labels at half the rate, or in another unit, end in the first half of the recording.
LEAST_SHARE_LABELLED = 0.55
_LEAST_COVERED = 2 / 3  # of the time up to the last label, by words without pauses; sparse marks may end anywhere


def check_label_ends(
    source: str,
    names: Sequence[str],
    ends: Float[np.ndarray, " n"],
    covered: Float[np.ndarray, " n"],
    lengths: Float[np.ndarray, " n"],
    *,
    noun: str,
    advice: str,
    rate_error: float = 0.0,
) -> None:
    """Raise an error if labels end after their recordings. Times are seconds; `ends` is 0 without labels.

    Warn if labels cover two thirds of the time up to the last one, but end before 55 % of the recording (medians).
    """
    late = np.flatnonzero(ends > lengths * (1 + rate_error) + MOST_SECONDS_AFTER_END).tolist()
    if late:
        lines = [f"{names[row]}: labels until {ends[row]:g} s, {noun} until {lengths[row]:g} s" for row in late]
        what = f"{len(late)} of {len(names)} labelled files have labels that end after the {noun}"
        raise ValueError(f"{source}: {what}:\n{name_a_few(lines)}\n{advice}")
    is_labelled = (ends > 0) & np.isfinite(lengths)
    ends, covered, lengths = ends[is_labelled], covered[is_labelled], lengths[is_labelled]
    if not len(ends) or np.median(covered / ends) < _LEAST_COVERED:
        return
    if (share := float(np.median(ends / lengths))) < LEAST_SHARE_LABELLED:
        what = f"the last label of a file ends at {share:.2g} of its {noun} (median of {len(ends)} files)"
        meaning = f"if whole files are labelled, the times are in another unit; {advice}"
        warnings.warn(f"{source}: {what}: {meaning}", stacklevel=4)
