"""The recordings that a source holds, before channels are chosen and splits are drawn.

T samples, C channels.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from cpc.data.signals.labels import Interval, Labels
from cpc.data.signals.rates import choose_model_channels

GROUP_NAMES = ("group", "user", "subject")


class ReadOptions(NamedTuple):
    """What the user says about the files of a source.

    Attributes:
        sample_rate_hz: rate of all files; None: theirs.
        channels: the chosen channels; None: all.
        label_columns: names of columns of tables that hold labels per sample.
        model_channels: names of the channels that a model reads; None: it reads by position.
    """

    sample_rate_hz: float | None
    channels: Sequence[str | int] | None
    label_columns: Sequence[str]
    model_channels: Sequence[str] | None = None

    def choose(self, available: Sequence[str], source: object) -> tuple[list[str], list[int]]:
        """Return names and columns of the channels to read; see `choose_model_channels`."""
        return choose_model_channels(self.model_channels, self.channels, available, source)


@runtime_checkable
class Reader(Protocol):
    """Decodes the recordings of a source. It can be pickled, without the samples that it holds in memory."""

    def blocks(self, row: int, columns: Sequence[int]) -> Iterator[np.ndarray]:
        """Yield the chosen columns of a recording, `[t, C]` in one or several blocks, as real numbers.

        Raises:
            ValueError: naming the recording, before or after any block, if it cannot be decoded.
        """
        ...

    def loaded(self) -> AbstractContextManager[None]:
        """Return a context that holds in memory what several recordings share, and releases it afterwards."""
        ...


@dataclass(kw_only=True)
class Listing:
    """The recordings of a source; lists have one entry per recording.

    Attributes:
        names: path relative to the source, or `recording 3`.
        channels: names of all channels.
        sample_rate_hz: rate of all recordings; None if the source does not say.
        own_rates_hz: rate of each recording by its own clock, if there are intervals; None: that of all.
        num_samples: upper bound of each recording's number of samples.
        reader: decodes the recordings.
        version: numbers and strings that change if the content of the source does.
        splits: "" where the source names none.
        groups: "" where unknown.
        labels: task -> labels per recording or per sample.
        intervals: task -> intervals of each recording.
        units: unit of each channel in each recording, "" if unknown; empty: all are unknown.
        layout_problem: message if an array seems to be transposed; it is refused unless the user lists all channels.
    """

    names: list[str]
    channels: list[str]
    sample_rate_hz: float | None
    num_samples: list[int]
    reader: Reader
    version: Sequence[Any]
    splits: list[str]
    groups: list[str]
    labels: dict[str, Labels] = field(default_factory=dict)
    intervals: Mapping[str, list[list[Interval]]] = field(default_factory=dict)
    units: Sequence[Sequence[str]] = ()
    own_rates_hz: Sequence[float | None] = ()
    layout_problem: str = ""
