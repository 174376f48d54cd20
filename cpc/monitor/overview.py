"""The table of runs: a row each, searched and sorted; and how their configurations differ."""

import math
import time
from collections.abc import Sequence
from typing import NamedTuple

from cpc.monitor.badges import Badge, badges, seconds_since_write, format_seconds
from cpc.monitor.figure import number
from cpc.monitor.record_types import HEALTH, PROBE
from cpc.monitor.text import replace_surrogates
from cpc.monitor.library import Library
from cpc.monitor.run import Run
from cpc.monitor.view import Unit, View

COLUMNS = {  # of the table, by the name under which it is sorted
    "name": "run",
    "step": "step",
    "bound": "log N - L",
    "held_out": "held-out log N - L",
    "probe": "probe accuracy",
    "speed": "examples/s",
    "age": "last write",
}


class Row(NamedTuple):
    """A run in the table."""

    name: str
    colour: str
    badges: list[Badge]
    cells: dict[str, tuple[float, str]]  # by column of `COLUMNS`, where known: what to sort by, and the words shown
    notes: list[str]  # what is wrong with its files, in sentences

    @property
    def sentences(self) -> list[str]:
        """The reasons of the badges, and the notes."""
        return [*(f"{badge.name}: {badge.reason}" for badge in self.badges), *self.notes]

    def words(self, column: str) -> str:
        """A cell's words; empty where it is not known."""
        return self.name if column == "name" else self.cells.get(column, (math.nan, ""))[1]


def overview(library: Library, unit: Unit = "nats") -> list[Row]:
    """A row for every run, in the order in which they were found."""
    return [_row(run, unit) for run in library.runs.values()]


def search_and_sort(rows: Sequence[Row], search: str = "", sort_by: str = "name", descending: bool = False) -> list[Row]:
    """The rows that hold every word of the search in name or badges, in order; what is unknown comes last."""
    words = search.lower().split()
    texts = {row.name: " ".join([row.name, *(badge.name for badge in row.badges)]).lower() for row in rows}
    found = [row for row in rows if all(word in texts[row.name] for word in words)]
    if sort_by == "name":
        return sorted(found, key=lambda row: row.name, reverse=descending)
    known = [row for row in found if sort_by in row.cells]
    known.sort(key=lambda row: row.cells[sort_by][0], reverse=descending)
    return known + [row for row in found if sort_by not in row.cells]


def config_differences(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a table of the options that are not the same in all runs; empty where an option is missing."""
    configs = [run.config() for run in runs]
    names = dict.fromkeys(name for config in configs for name in config)
    rows = [[name, *(config.get(name, "") for config in configs)] for name in names]
    return ["option", *(run.name for run in runs)], [row for row in rows if len(set(row[1:])) > 1]


def _row(run: Run, unit: Unit) -> Row:
    now = time.monotonic()
    try:
        cells = {column: cell for column, cell in _cells(run, unit, now).items() if math.isfinite(cell[0])}
        return Row(run.name, run.colour, badges(run, now), cells, run.notes)
    except Exception as error:  # one run must not take the others off the page
        return Row(run.name, run.colour, [], {}, [replace_surrogates(f"cannot be shown: {type(error).__name__}: {error}")])


def _cells(run: Run, unit: Unit, now: float) -> dict[str, tuple[float, str]]:
    cells = {}
    for column, view in (("bound", View(unit=unit)), ("held_out", View(unit=unit, split="held-out"))):
        table = run.bound(view)
        if table is not None:
            names = ("mi_bound_nats", "standard_error_nats", "mi_ceiling_nats")
            bound, error, ceiling = (view.factor(name) * table.last_mean(name) for name in names)
            known = f" \u00b1 {error:.2g}" if math.isfinite(error) else ""
            cells[column] = bound, f"{number(bound)}{known} of {number(ceiling)}, {table.key.names[1]}"
            if column == "bound":
                step = table.last_mean("step")
                cells["step"] = step, f"{step:.0f}"
    probes = run.tables(PROBE)
    if probes:
        words = "; ".join(f"{100 * t.last_mean('accuracy'):.1f} % {'/'.join(t.key.names)}" for t in probes)
        cells["probe"] = 100 * probes[0].last_mean("accuracy"), words
    for table in run.tables(HEALTH):
        speed = table.last_mean("windows_per_second")
        cells["speed"] = speed, number(speed)
    if run.changed_at is not None:
        age = seconds_since_write(run, now)
        cells["age"] = age, f"{format_seconds(age)} ago"
    return cells
