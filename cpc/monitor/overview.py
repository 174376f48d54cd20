"""The table of runs, and the differences between their configurations."""

import math
import time
from collections.abc import Sequence
from typing import Any

from cpc.monitor.badges import badges, format_seconds, seconds_since_write
from cpc.monitor.figure import format_number
from cpc.monitor.library import Library
from cpc.monitor.record_types import HEALTH, PROBE
from cpc.monitor.run import Run
from cpc.monitor.view import View
from cpc.pages.report import Table

COLUMNS = {  # the headings of the columns of numbers
    "step": "step",
    "bound": "log N - L",
    "held_out": "held-out log N - L",
    "probe": "probe accuracy",
    "speed": "examples/s",
    "age": "last write",
}


def overview(library: Library, unit: str = "nats") -> list[dict[str, Any]]:
    """Return a row for every run, in the order in which the runs were found.

    A row has `name`, `colour`, the names of the `badges`, and their `reasons` with the `notes` about the run's files.
    Each known number of `COLUMNS` has its text in the field `COLUMN_text`.
    """
    now = time.monotonic()
    runs = list(library.runs.values())
    cells = dict(library.skip_unreadable(runs, lambda runs: [(run, _cells(run, unit, now)) for run in runs]))
    rows = []
    for run in runs:
        found, notes = badges(run, now) if run in cells else [], run.notes
        row: dict[str, Any] = {"name": run.name, "colour": run.colour, "badges": [badge for badge, _ in found]}
        for column, (value, text) in cells.get(run, {}).items():
            if math.isfinite(value):
                row |= {column: value, f"{column}_text": text}
        reasons = [": ".join(each) for each in found]
        rows.append(row | {"notes": notes, "reasons": "; ".join([*reasons, *notes])})
    return rows


def config_differences(runs: Sequence[Run]) -> Table:
    """Return a table of the options that differ between runs; missing options are empty cells."""
    configs = [run.config() for run in runs]
    names = dict.fromkeys(name for config in configs for name in config)
    rows = [[name, *(config.get(name, "") for config in configs)] for name in names]
    return Table(["option", *(run.name for run in runs)], [row for row in rows if len(set(row[1:])) > 1])


def _cells(run: Run, unit: str, now: float) -> dict[str, tuple[float, str]]:
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
