"""The table of runs: a row each, searched and sorted; and how their configurations differ."""

import math
import time
from collections.abc import Sequence
from typing import NamedTuple

from cpc.monitor.badges import Badge, badges, words_of_seconds
from cpc.monitor.charts import bound_table
from cpc.monitor.figure import number
from cpc.monitor.kinds import HEALTH, PROBE
from cpc.monitor.library import Library
from cpc.monitor.run import Run
from cpc.monitor.view import View

COLUMNS = {  # of the table, by the name under which it is sorted
    "name": "run",
    "step": "step",
    "bound": "log N - L",
    "ceiling": "log N",
    "held_out": "held-out log N - L",
    "probe": "probe accuracy",
    "speed": "windows/s",
    "age": "last record",
}


class Row(NamedTuple):
    """A run in the table.

    Attributes:
        name: of the run.
        colour: its place in the palette.
        badges: what a glance should tell.
        values: by column of `COLUMNS`; NaN where unknown; age in seconds; information in the unit asked for.
        notes: what is wrong with its files, in sentences.
    """

    name: str
    colour: int
    badges: list[Badge]
    values: dict[str, float]
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
        words = {"step": f"{value:.0f}", "probe": f"{value:.1f} %", "age": f"{words_of_seconds(value)} ago"}
        return words.get(column, number(value))


def overview(library: Library, view: View) -> list[Row]:
    """A row for every run, in the order in which they were found."""
    now = time.time()
    return [
        Row(name, place, badges(run, now), _values(run, view, now), notes(library, run))
        for place, (name, run) in enumerate(library.runs.items())
    ]


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
    found = list(run.notes.values())
    if run.name in library.troubles:
        found.append(library.troubles[run.name])
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


def _values(run: Run, view: View, now: float) -> dict[str, float]:
    values = dict.fromkeys(list(COLUMNS)[1:], math.nan)
    training = bound_table(run, View(split="training"))
    held_out = bound_table(run, View(split="held-out"))
    if training is not None:
        values["step"] = training.last_mean("step")
        values["bound"] = training.last_mean("mi_bound_nats") * view.per_nat
        values["ceiling"] = training.last_mean("mi_ceiling_nats") * view.per_nat
    if held_out is not None:
        values["held_out"] = held_out.last_mean("mi_bound_nats") * view.per_nat
    for table in run.tables(PROBE)[:1]:
        values["probe"] = 100 * table.last_mean("accuracy")
    for table in run.tables(HEALTH):
        values["speed"] = table.last_mean("windows_per_second")
    if run.written_at:
        values["age"] = max(0.0, now - run.written_at)
    return values
