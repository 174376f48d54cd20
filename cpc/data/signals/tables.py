"""Recordings in tables: one row per sample, one column per channel, and columns of time and labels.

t samples of a block, C channels.
"""

import itertools
import math
import re
from abc import abstractmethod
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from cpc.config.extras import import_extra
from cpc.data.recordings.labels import RATE_ROUNDING
from cpc.data.signals.channels import RATE_TOLERANCE
from cpc.data.signals.listing import ReadOptions, SignalFile
from cpc.data.store.text_files import number_or_nan, read_table
from cpc.data.store.untrusted import reading

NUM_HEAD = 4096  # rows that the rate is taken from
NUM_COUNTED = 1024  # rows by which counters are known
_LEAST_COUNTED = 100  # fewer samples of a channel may rise by a constant
_UNITS = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "millis": 1e-3, "us": 1e-6, "ns": 1e-9}
_UNIT = "s|sec|seconds|ms|millis|us|ns"
_NAME = re.compile(
    rf"(?:elapsed[ _]?)?(?:time|timestamps?|datetime|t|epoch)(?:[ _]?elapsed)?(?:[ _.\[(]*({_UNIT})[\])]?)?"
    r"|(seconds|millis)(?:[ _]?elapsed)?"
)
_INDEX_NAME = re.compile(r"index|unnamed: \d+")  # pandas writes the latter for the index of a frame
_ZONE = re.compile(r"([T ]\d\d(?::\d\d)*(?:\.\d+)?) ?(?:Z|([+-])(\d\d)(?::?(\d\d))?)$")  # and the time before it
_LARGEST_STEP = 1.75  # of the mean step: timestamps are rounded and jitter, a lost sample doubles the step


def is_time(name: str) -> bool:
    """Return whether the name of a column is one of time, such as `Timestamp`, `time_ms`, `seconds_elapsed` or `t`."""
    return _NAME.fullmatch(name.lower()) is not None


def is_counter(name: str, head: Float64[np.ndarray, " n"]) -> bool | None:
    """Return whether a column is a time, an index or a counter, by its first values; None if it is too short to judge.

    A column that is named so is one if its values rise, or none is a number; any other, if they rise by a constant.
    """
    is_named = is_time(name) or _INDEX_NAME.fullmatch(name.lower()) is not None
    if len(head) < (2 if is_named else _LEAST_COUNTED):
        return None
    steps = np.diff(head)
    rises = bool(np.isfinite(head).all() and (steps > 0).all())
    if is_named:
        return rises or bool(np.isnan(head).all())  # dates are no numbers
    if not rises:
        return False
    decimals = [place for place in range(9) if np.allclose(head, head.round(place), rtol=1e-15, atol=0)]
    rounding = 10.0 ** -decimals[0] if decimals else 1e-6 * steps.mean()
    return bool(np.ptp(steps) < 1.5 * rounding + 4 * np.spacing(np.abs(head).max()))  # 60 Hz: 16 or 17 ms


def parse_times(cells: Sequence[str]) -> tuple[Float64[np.ndarray, " n"], bool]:
    """Return times as numbers, in seconds if the cells are dates (UTC without a zone), and whether they are."""
    try:
        return np.fromiter(map(float, cells), np.float64, len(cells)), False
    except ValueError:
        texts = [cell.strip() for cell in cells]
    zones = [_ZONE.search(text) for text in texts]
    dates = [text[: zone.end(1)] if zone else text for text, zone in zip(texts, zones, strict=True)]
    offsets = [
        float(f"{zone[2]}1") * (3600 * int(zone[3]) + 60 * int(zone[4] or 0)) if zone and zone[2] else 0.0
        for zone in zones
    ]
    return np.array(dates, "datetime64[ns]").astype(np.int64) * 1e-9 - offsets, True


class TimeColumn:
    """The rate of a column of time, None for a single sample, and a check that the column has no gaps.

    `expected_hz`, the rate that the user gave, decides the unit if the column's name has none.
    """

    def __init__(
        self, path: Path, name: str, head: Float64[np.ndarray, " n"], is_dates: bool, expected_hz: float | None
    ) -> None:
        self._path, self._name = path, name
        self.sample_rate_hz: float | None = None
        if len(head) < 2:
            return  # one sample, which has no steps either
        self._mean_step = float(head[-1] - head[0]) / (len(head) - 1)
        self.check(head, 0, None)
        unit = 1.0 if is_dates else self._unit(head, expected_hz)
        rate = 1 / (self._mean_step * unit)
        whole = float(max(1, round(rate)))
        self.sample_rate_hz = whole if abs(rate / whole - 1) < RATE_ROUNDING else float(f"{rate:.6g}")
        if expected_hz is not None and abs(rate / expected_hz - 1) > RATE_TOLERANCE:
            found = f"the column {name!r} has a step of {self._mean_step:.6g}, {rate:.6g} Hz in units of {unit:g} s"
            advice = "leave it out, or add the unit to the name (time_s, time_ms, time_us)"
            raise ValueError(f"{path}: {found}, but `sample_rate_hz` is {expected_hz:g}: {advice}")

    def check(self, times: Float64[np.ndarray, " n"], first: int, previous: float | None) -> None:
        """Refuse times that go backwards or have a gap; the message names the file and the sample."""
        steps = np.diff(times) if previous is None else np.diff(times, prepend=previous)
        bad = np.flatnonzero(~((steps > 0) & (steps <= _LARGEST_STEP * self._mean_step)))
        if bad.size:
            sample = first + int(bad[0]) + (previous is None)
            found = f"the column {self._name!r} steps by {steps[bad[0]]:.6g} before sample {sample}"
            equal = f"on average by {self._mean_step:.6g}; a recording has equal steps: cut it there, or resample it"
            raise ValueError(f"{self._path}: {found}, {equal}")

    def _unit(self, head: np.ndarray, expected_hz: float | None) -> float:
        """Return the unit of the column in seconds: by its name, the expected rate, or the size of an epoch."""
        match = _NAME.fullmatch(self._name.lower())
        word = match[1] or match[2] if match else None
        if word:
            return _UNITS[word]
        if expected_hz is not None:
            for unit in (1.0, 1e-3, 1e-6, 1e-9):
                if abs(1 / (self._mean_step * unit) / expected_hz - 1) <= RATE_TOLERANCE:
                    return unit
        # Times since 1970: 1e9 in seconds, 1e12 in milliseconds ...
        return next((unit for unit, least in ((1e-9, 1e17), (1e-6, 1e14), (1e-3, 1e11)) if head[0] > least), 1.0)


# Consecutive rows of a table: `[t, C]` numbers, NaN where a cell is empty; `[t]` times, and whether these are dates.
Rows = tuple[np.ndarray, np.ndarray | None, bool]


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
    """A table that is a recording. A column that the options name is a channel, even if it looks like a time."""

    def __init__(self, path: Path, options: ReadOptions) -> None:
        super().__init__(path, options)
        self._expected_hz = options.sample_rate_hz
        self.names, self.num_samples = self._open()
        self.sample_labels = [name for name in self.names if name == "label"]
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
            columns = f"the columns {', '.join(self.names)}, which are times, counters or labels"
            raise ValueError(f"{self.path} has no channels, only {columns}: name those to read in `channels`")

    def _no_number(self, line: int, name: str, found: str) -> ValueError:
        advice = "choose other columns by `channels`, or name a column of labels `label`"
        return ValueError(f"{self.path}, line {line}: the column {name!r} holds {found}, no number; {advice}")

    @property
    def rate_hz(self) -> float | None:  # type: ignore[override]
        """The rate by the column of time; None without it."""
        return self._clock.sample_rate_hz if self._clock else None

    def blocks(self, columns: Sequence[int]) -> Iterator[np.ndarray]:
        """Yield the chosen channels, `[t, C]` float64."""
        first, previous = 0, None
        for numbers, times, _ in self._rows([self.channels[column] for column in columns], self.time_column):
            if self._clock and times is not None:
                self._clock.check(times, first, previous)
                previous = float(times[-1])
            first += len(numbers)
            yield numbers

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
        _, times, is_dates = next(self._rows([], self.time_column), (None, None, False))
        if times is None:
            return None
        return TimeColumn(self.path, self.time_column, times[:NUM_HEAD], is_dates, self._expected_hz)


_BLOCK_ROWS = 4096
_MISSING = ("", "na", "n/a", "null", "none", "-")


class CommaTable(SignalTable):
    """A csv or tsv file with a header. An empty line between rows is a sample of which all channels are missing."""

    def texts(self, name: str) -> list[str]:
        """Return the cells of one column."""
        column = self.names.index(name)
        return [cells[column].strip() if cells else "" for _, cells in self._cells()]

    def _open(self) -> tuple[list[str], int]:
        names, rows = read_table(self.path)
        numbers = [name for name in names if math.isfinite(number := number_or_nan(name)) and number % 1]
        # Three names 0, 1, 2 or more are pandas'; fewer may be counts.
        if numbers or (len(names) < 3 and all(map(str.isdecimal, [*names, *next(rows, (0, [""]))[1]]))):
            head = ", ".join(numbers or names)[:80]
            raise ValueError(f"{self.path}, line 1: {head} may be names or the first sample: write other names")
        num_breaks, last = {b"\n": 0, b"\r": 0}, b""
        with self.path.open("rb") as stream:
            while content := stream.read(1 << 20):
                for character in num_breaks:
                    num_breaks[character] += content.count(character)
                last = content[-1:]
        return names, max(num_breaks.values()) - (last in num_breaks)

    def _head(self, names: Sequence[str]) -> np.ndarray:
        rows = [cells or [""] * len(self.names) for _, cells in itertools.islice(self._cells(), NUM_COUNTED)]
        columns = [self.names.index(name) for name in names]
        head = [[number_or_nan(cells[column]) for column in columns] for cells in rows]
        return np.array(head, np.float64).reshape(len(rows), len(names))

    def _rows(self, numbers: Sequence[str], time: str | None) -> Iterator[Rows]:
        columns = [self.names.index(name) for name in numbers]
        rows = self._cells()
        while block := list(itertools.islice(rows, _BLOCK_ROWS)):
            lines = [line for line, _ in block]
            filled = [cells or [""] * len(self.names) for _, cells in block]
            values = np.empty((len(block), len(columns)))
            for place, column in enumerate(columns):
                values[:, place] = self._numbers([cells[column] for cells in filled], lines, self.names[column])
            if time is None:
                yield values, None, False
                continue
            with reading(self.path, f"line {lines[0]} on: the column {time!r} holds no times"):
                times = parse_times([cells[self.names.index(time)] for cells in filled])
            yield values, *times

    def _cells(self) -> Iterator[tuple[int, list[str]]]:
        """Yield line number and cells of every row; no cells for an empty line between rows."""
        _, rows = read_table(self.path)
        previous = None
        for line, cells in rows:
            yield from ((empty, []) for empty in range((previous or line - 1) + 1, line))
            yield line, cells
            previous = line

    def _numbers(self, cells: Sequence[str], lines: Sequence[int], name: str) -> np.ndarray:
        try:
            return np.fromiter(map(float, cells), np.float64, len(cells))
        except ValueError:
            return np.array([self._number(cell, line, name) for cell, line in zip(cells, lines, strict=True)])

    def _number(self, cell: str, line: int, name: str) -> float:
        if cell.strip().lower() in _MISSING:
            return np.nan
        try:
            return float(cell)
        except ValueError:
            raise self._no_number(line, name, repr(cell[:40])) from None


_PARQUET_ROWS = 1 << 16
_NUMBERS = ("int", "uint", "float", "halffloat", "double", "decimal")  # names of types


class ParquetTable(SignalTable):
    """A parquet file; a numbered index that pandas stores beside the columns is left out."""

    def texts(self, name: str) -> list[str]:
        """Return the cells of one column."""
        return [
            "" if value is None else str(value)
            for batch in self._batches([name])
            for value in batch.column(0).to_pylist()
        ]

    def _open(self) -> tuple[list[str], int]:
        with reading(self.path, "cannot be read as a parquet file"), _parquet().ParquetFile(self.path) as file:
            names = [name for name in file.schema_arrow.names if not name.startswith("__index_level_")]
            if len(set(names)) < len(names):
                raise ValueError(f"{self.path} names a column twice: {', '.join(names)}")
            self._types = {field.name: str(field.type) for field in file.schema_arrow}
            return names, int(file.metadata.num_rows)

    def _head(self, names: Sequence[str]) -> np.ndarray:
        head = np.full((min(NUM_COUNTED, self.num_samples), len(names)), np.nan)
        numeric = [place for place, name in enumerate(names) if self._types[name].startswith(_NUMBERS)]
        batch = next(self._batches([names[place] for place in numeric], NUM_COUNTED), None) if numeric else None
        if batch is not None:
            head[: len(batch), numeric] = _numbers(batch, len(numeric))
        return head

    def _rows(self, numbers: Sequence[str], time: str | None) -> Iterator[Rows]:
        for name in numbers:
            if not self._types[name].startswith(_NUMBERS):
                raise self._no_number(1, name, self._types[name])
        is_dates = time is not None and self._types[time].startswith(("timestamp", "date"))
        for batch in self._batches([*numbers, *([] if time is None else [time])]):
            times = None
            if time is not None:
                times = batch.column(time).to_numpy(zero_copy_only=False)
                with reading(self.path, f"the column {time!r} holds no times"):
                    times = times.astype("datetime64[ns]").astype(np.int64) * 1e-9 if is_dates else times.astype(float)
            yield _numbers(batch, len(numbers)), times, is_dates

    def _batches(self, names: Sequence[str], num_rows: int = _PARQUET_ROWS) -> Iterator[Any]:
        with reading(self.path, "cannot be read as a parquet file"), _parquet().ParquetFile(self.path) as file:
            for batch in file.iter_batches(num_rows, columns=list(names), use_threads=False):
                if len(batch):
                    yield batch


def _numbers(batch: Any, num_columns: int) -> np.ndarray:
    """Return the first columns of a batch as float64, NaN where empty."""
    values = np.empty((len(batch), num_columns))
    for place in range(num_columns):
        values[:, place] = np.asarray(batch.column(place).to_numpy(zero_copy_only=False), np.float64)
    return values


def _parquet() -> Any:
    return import_extra("pyarrow.parquet", "signals", "parquet files need the package `pyarrow`")
