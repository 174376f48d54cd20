"""Recordings in tables: one row per sample, one column per channel, and columns of time and labels.

t samples of a block, C channels.
"""

from abc import abstractmethod
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cpc.data.signals.listing import ReadOptions, SignalFile
from cpc.data.signals.times import NUM_HEAD, TimeColumn, is_counter, is_time


class Rows(NamedTuple):
    """Consecutive rows of a table: `[t, C]` numbers, NaN where a cell is empty; `[t]` times, and if these are dates."""

    numbers: np.ndarray
    times: np.ndarray | None
    is_dates: bool = False


def leave_out_counters(tables: Sequence["SignalTable"]) -> None:
    """Take out of the channels what is a counter in each table that is long enough to judge."""
    verdicts: dict[str, set[bool]] = {}
    for table in tables:
        for name, verdict in table.verdicts.items():
            verdicts.setdefault(name, set()).add(verdict)
    counters = {name for name, found in verdicts.items() if found == {True}}
    for table in tables:
        table.leave_out(counters)


class SignalTable(SignalFile):
    """A table that is a recording.

    A column that the options name is a channel, even if it looks like a time.

    Attributes:
        names: names of all columns.
        time_column: the column that gives the rate; None without it.
        counters: further columns of times, indices and counters, which are no channels.
        verdicts: whether a column is a counter by this table alone, for the columns that it is long enough to judge.

    Raises:
        ValueError: if the header cannot be read, or no column is a channel; the message names the file.
    """

    def __init__(self, path: Path, options: ReadOptions) -> None:
        super().__init__(path, options)
        self._expected_hz = options.sample_rate_hz
        self.names, self.num_samples = self._open()
        self.sample_labels = [name for name in self.names if name in options.label_columns]
        kept = {*self.sample_labels, *map(str, options.channels or ()), *(options.model_channels or ())}
        times = [name for name in self.names if is_time(name) and name not in kept]
        self.time_column = times[0] if times else None
        left_out = {self.time_column, *self.sample_labels}
        self.counters: list[str] = []
        self.channels = [name for name in self.names if name not in left_out]
        self._require_channels()
        if any(str(channel).isdecimal() and channel not in self.names for channel in options.channels or ()):
            kept.update(self.names)  # numbers count all columns
        others = [name for name in self.channels if name not in kept]
        verdicts = [is_counter(name, column) for name, column in zip(others, self._head(others).T, strict=True)]
        self.verdicts = {name: found for name, found in zip(others, verdicts, strict=True) if found is not None}

    def leave_out(self, counters: Collection[str]) -> None:
        """Take counters out of the channels; raise a ValueError if no channel is left."""
        self.counters = [name for name in self.channels if name in counters]
        self.channels = [name for name in self.channels if name not in counters]
        self._require_channels()

    def _require_channels(self) -> None:
        if not self.channels:
            raise ValueError(
                f"{self.path} has no channels, only the columns {', '.join(self.names)}, which are times, counters or "
                "labels: name those to read in `channels`"
            )

    @property
    def rate_hz(self) -> float | None:  # type: ignore[override]
        """The rate by the column of time; None without it."""
        return self._clock.sample_rate_hz if self._clock else None

    def blocks(self, columns: Sequence[int]) -> Iterator[np.ndarray]:
        """Yield the chosen channels, `[t, C]` float64.

        Raises:
            ValueError: naming file, line and column, if a cell is no number; if the column of time has a gap.
        """
        first, previous = 0, None
        for rows in self._rows([self.channels[column] for column in columns], self.time_column):
            if self._clock and rows.times is not None:
                self._clock.check(rows.times, first, previous)
                previous = float(rows.times[-1])
            first += len(rows.numbers)
            yield rows.numbers

    @abstractmethod
    def _open(self) -> tuple[list[str], int]:
        """Return the columns' names and an upper bound of the number of rows."""

    @abstractmethod
    def _head(self, names: Sequence[str]) -> np.ndarray:
        """Return the first `NUM_COUNTED` rows of columns, `[t, C]` float64; NaN where a cell is no number."""

    @abstractmethod
    def _rows(self, numbers: Sequence[str], time: str | None) -> Iterator[Rows]:
        """Yield rows with at least one sample."""

    @cached_property
    def _clock(self) -> TimeColumn | None:
        if self.time_column is None:
            return None
        head = next(self._rows([], self.time_column), None)
        if head is None or head.times is None:
            return None
        return TimeColumn(self.path, self.time_column, head.times[:NUM_HEAD], head.is_dates, self._expected_hz)
