"""The table of runs: a row each, searched and sorted; and how their configurations differ."""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from cpc.monitor.badges import Badge, badges, silence_seconds, words_of_seconds
from cpc.monitor.figure import number
from cpc.monitor.kinds import HEALTH, PROBE
from cpc.monitor.legible import legible
from cpc.monitor.library import Library
from cpc.monitor.newest import bound_table
from cpc.monitor.run import Run
from cpc.monitor.view import AS_TRAINED, Split, View

COLUMNS = {  # of the table, by the name under which it is sorted
    "name": "run",
    "step": "step",
    "bound": "log N - L",
    "held_out": "held-out log N - L",
    "probe": "probe accuracy",
    "speed": "windows/s",
    "age": "last write",
}
_SPLITS: dict[str, Split] = {"bound": "training", "held_out": "held-out"}


class Row(NamedTuple):
    """A run in the table.

    Attributes:
        name: of the run.
        colour: its place in the palette.
        badges: what a glance should tell.
        values: to sort by, by column of `COLUMNS`; NaN where unknown; age in seconds, information in the unit.
        cells: in words, of those columns where a value must not stand alone.
        notes: what is wrong with its files, in sentences.
    """

    name: str
    colour: int
    badges: list[Badge]
    values: dict[str, float]
    cells: dict[str, str]
    notes: list[str]

    @property
    def sentences(self) -> list[str]:
        """What stands behind the badges, and the notes."""
        return [*(f"{badge.name}: {badge.reason}" for badge in self.badges), *self.notes]

    def words(self, column: str) -> str:
        """A cell."""
        if column == "name":
            return self.name
        value = self.values[column]
        if not math.isfinite(value):
            return ""
        words = {"step": f"{value:.0f}", "age": f"{words_of_seconds(value)} ago"} | self.cells
        return words.get(column, number(value))


def overview(library: Library, view: View) -> list[Row]:
    """A row for every run, in the order in which they were found."""
    return [_row(library, run, view) for run in library.runs.values()]


def arranged(rows: Sequence[Row], search: str, sort_by: str, descending: bool) -> list[Row]:
    """The rows that hold every word of the search in name or badges, in order; what is unknown comes last."""
    words = search.lower().split()
    found = [
        row
        for row in rows
        if all(word in f"{row.name} {' '.join(badge.name for badge in row.badges)}".lower() for word in words)
    ]
    if sort_by == "name":
        return sorted(found, key=lambda row: row.name, reverse=descending)
    known = [row for row in found if math.isfinite(row.values[sort_by])]
    known.sort(key=lambda row: row.values[sort_by], reverse=descending)
    return known + [row for row in found if not math.isfinite(row.values[sort_by])]


def notes(library: Library, run: Run) -> list[str]:
    """What the reader should know of the run's files."""
    found = [*run.notes.values(), *run.unreadable.values()]
    if run.where_columns_are:
        found.append(run.where_columns_are)
    found += [told[run.name] for told in (library.troubles, library.unshown) if run.name in told]
    num_problems = sum(run.num_problems.values())
    if num_problems:
        found.append(f"{num_problems} lines could not be used: {'; '.join(run.problems)}")
    return found


def differences(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a table of the options that are not the same in all runs; empty where an option is missing."""
    configs = [run.config() for run in runs]
    names = dict.fromkeys(name for config in configs for name in config)
    rows = [[name, *(config.get(name, "") for config in configs)] for name in names]
    return ["option", *(run.name for run in runs)], [row for row in rows if len(set(row[1:])) > 1]


def _row(library: Library, run: Run, view: View) -> Row:
    unknown = dict.fromkeys(list(COLUMNS)[1:], math.nan)
    try:
        now = time.monotonic()
        values, cells = _values(run, view, now)
        row = Row(run.name, library.places[run.name], badges(run, now), unknown | values, cells, notes(library, run))
    except Exception as error:  # one run must not take the others off the page
        told = legible(f"cannot be shown: {type(error).__name__}: {error}")
        row = Row(run.name, library.places[run.name], [], unknown, {}, [told])
    return row


def _values(run: Run, view: View, now: float) -> tuple[dict[str, float], dict[str, str]]:
    """Values and words by column."""
    values, cells = {}, {}
    for column, split in _SPLITS.items():
        table = bound_table(run, replace(view, split=split, strategy=AS_TRAINED))
        if table is not None:
            bound, error, ceiling = (
                table.last_mean(name) * view.per_nat
                for name in ("mi_bound_nats", "standard_error_nats", "mi_ceiling_nats")
            )
            values[column] = bound
            known = f" \u00b1 {error:.2g}" if math.isfinite(error) else ""
            cells[column] = f"{number(bound)}{known} of {number(ceiling)}, {table.key.names[1]}"
            if split == "training":
                values["step"] = table.last_mean("step")
    probes = run.tables(PROBE)
    if probes:
        values["probe"] = 100 * probes[0].last_mean("accuracy")
        cells["probe"] = "; ".join(f"{100 * t.last_mean('accuracy'):.1f} % {'/'.join(t.key.names)}" for t in probes)
    for table in run.tables(HEALTH):
        values["speed"] = table.last_mean("windows_per_second")
    if run.changed_at is not None:
        values["age"] = silence_seconds(run, now)
    return values, cells
