"""Recordings in csv and tsv files."""

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from cpc.data.signals.tables import NUM_COUNTED, Rows, SignalTable, parse_times
from cpc.data.store.tables import number_or_nan, read_table

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
            raise ValueError(
                f"{self.path}, line 1: {', '.join(numbers or names)[:80]} may be names of columns or the first sample: "
                "write other names into the first line"
            )
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
                yield Rows(values, None)
                continue
            cells = [cells[self.names.index(time)] for cells in filled]
            try:
                yield Rows(values, *parse_times(cells))
            except ValueError as error:
                raise ValueError(
                    f"{self.path}, line {lines[0]} on: the column {time!r} holds no times ({error})"
                ) from error

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
            raise ValueError(
                f"{self.path}, line {line}: the column {name!r} holds {cell[:40]!r}, no number; correct it, choose "
                "other columns by `channels`, or name a column of labels `label`"
            ) from None
