"""The table of runs, which can be searched and sorted, and the differences between their configurations."""

import math
import time
from collections.abc import Sequence
from typing import NamedTuple

from cpc.monitor.badges import Badge, badges, format_seconds, seconds_since_write
from cpc.monitor.figure import format_number
from cpc.monitor.library import Library
from cpc.monitor.record_types import HEALTH, PROBE
from cpc.monitor.run import Run
from cpc.monitor.text import replace_surrogates
from cpc.monitor.view import Unit, View

COLUMNS = {  # the headings of the columns
    "name": "run",
    "step": "step",
    "bound": "log N - L",
    "held_out": "held-out log N - L",
    "probe": "probe accuracy",
    "speed": "examples/s",
    "age": "last write",
}


class Row(NamedTuple):
    """A row of the table of runs."""

    name: str
    colour: str
    badges: list[Badge]
    cells: dict[str, tuple[float, str]]  # by column of `COLUMNS`, the sort key and the text of each known cell
    notes: list[str]  # sentences about problems with the run's files

    @property
    def sentences(self) -> list[str]:
        """The reasons of the badges and the notes."""
        return [*(f"{badge.name}: {badge.reason}" for badge in self.badges), *self.notes]

    def text(self, column: str) -> str:
        """Return a cell's text; empty if the value is not known."""
        return self.name if column == "name" else self.cells.get(column, (math.nan, ""))[1]


def overview(library: Library, unit: Unit = "nats") -> list[Row]:
    """Return a row for every run, in the order in which the runs were found."""
    return [_row(run, unit) for run in library.runs.values()]


def search_and_sort(
    rows: Sequence[Row], search: str = "", sort_by: str = "name", descending: bool = False
) -> list[Row]:
    """Return the rows whose name or badges contain every word of the search, sorted; unknown values come last."""
    words = search.lower().split()
    texts = {row.name: " ".join([row.name, *(badge.name for badge in row.badges)]).lower() for row in rows}
    matches = [row for row in rows if all(word in texts[row.name] for word in words)]
    if sort_by == "name":
        return sorted(matches, key=lambda row: row.name, reverse=descending)
    known = [row for row in matches if sort_by in row.cells]
    known.sort(key=lambda row: row.cells[sort_by][0], reverse=descending)
    return known + [row for row in matches if sort_by not in row.cells]


def config_differences(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of a table of the options that differ between runs; missing options are empty cells."""
    configs = [run.config() for run in runs]
    names = dict.fromkeys(name for config in configs for name in config)
    rows = [[name, *(config.get(name, "") for config in configs)] for name in names]
    return ["option", *(run.name for run in runs)], [row for row in rows if len(set(row[1:])) > 1]


def _row(run: Run, unit: Unit) -> Row:
    now = time.monotonic()
    try:
        cells = {column: cell for column, cell in _cells(run, unit, now).items() if math.isfinite(cell[0])}
        return Row(run.name, run.colour, badges(run, now), cells, run.notes)
    except Exception as error:  # an error in one run must not remove the others from the page
        return Row(
            run.name, run.colour, [], {}, [replace_surrogates(f"cannot be shown: {type(error).__name__}: {error}")]
        )


def _cells(run: Run, unit: Unit, now: float) -> dict[str, tuple[float, str]]:
    cells = {}
    for column, view in (("bound", View(unit=unit)), ("held_out", View(unit=unit, split="held-out"))):
        table = run.bound(view)
        if table is not None:
            names = ("mi_bound_nats", "standard_error_nats", "mi_ceiling_nats")
            bound, error, ceiling = (view.factor(name) * table.last_mean(name) for name in names)
            spread = f" \u00b1 {error:.2g}" if math.isfinite(error) else ""
            cells[column] = bound, f"{format_number(bound)}{spread} of {format_number(ceiling)}, {table.key.names[1]}"
            if column == "bound":
                step = table.last_mean("step")
                cells["step"] = step, f"{step:.0f}"
    probes = run.tables(PROBE)
    if probes:
        words = "; ".join(f"{100 * t.last_mean('accuracy'):.1f} % {'/'.join(t.key.names)}" for t in probes)
        cells["probe"] = 100 * probes[0].last_mean("accuracy"), words
    for table in run.tables(HEALTH):
        speed = table.last_mean("windows_per_second")
        cells["speed"] = speed, format_number(speed)
    if run.changed_at is not None:
        age = seconds_since_write(run, now)
        cells["age"] = age, f"{format_seconds(age)} ago"
    return cells
