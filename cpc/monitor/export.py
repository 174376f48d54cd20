"""The page as one HTML file that needs neither server nor network."""

import time
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from plotly.offline import get_plotlyjs

from cpc.data.store.atomic import finite, json_text
from cpc.monitor.charts import BY_RUN, NAMES, charts
from cpc.monitor.figure import GRAPH_CONFIG, Chart
from cpc.monitor.library import Library
from cpc.monitor.overview import COLUMNS, config_differences, overview
from cpc.monitor.record_types import BOUND
from cpc.monitor.run import Run
from cpc.monitor.table import replace_surrogates
from cpc.monitor.view import MAX_POINTS, View
from cpc.pages.html import folded, scroll, table, write_document

BY_RUN_POINTS = 4 * MAX_POINTS  # total number of points in the charts of single runs, which limits the size of the file
MIN_POINTS = 1500


def write_export(path: Path, library: Library) -> None:
    """Write the table of runs, all charts of training, those of each held-out strategy, and the options."""
    runs = list(library.runs.values())
    if not runs:
        roots = replace_surrogates(", ".join(map(str, library.roots)))
        raise ValueError(f"no run below {roots}: a run is a folder with bound.jsonl")
    draw = resources.files("cpc.monitor").joinpath("assets/export.js").read_text(encoding="utf-8")
    sections = [_records(runs, "training records", "training", View(), NAMES)]
    keys = [table.key.names for run in runs for table in run.tables(BOUND)]
    for strategy in dict.fromkeys(strategy for split, strategy in keys if split != "train"):
        heading, view = f"held-out records, negatives {strategy}", View(split="held-out", strategy=strategy)
        names = ("bound", "loss", "accuracy", "steps", "heat")
        sections.append(_records(runs, heading, f"held-out-{strategy}", view, names))
    options = scroll(table(*config_differences(runs)[:2]), "Options that differ")
    body = (
        f"<h1>cpc monitor</h1>"
        f"<p class='caption'>{len(runs)} runs, as of {time.strftime('%Y-%m-%d %H:%M:%S %Z')}.</p>\n"
        f"{scroll(_run_table(overview(library)), 'Table of runs')}\n{''.join(sections)}"
        f"{folded('Configurations: where they differ', options)}"
    )
    config = f'<script type="application/json" id="graph-config">{json_text(GRAPH_CONFIG)}</script>\n'
    write_document(path, "cpc monitor", body, get_plotlyjs(), f"{config}<script>{draw}</script>")


def _run_table(rows: Sequence[dict[str, Any]]) -> str:
    cells = []
    for row in rows:
        name = f'<span style="color: {row["colour"]}">{escape(row["name"])}</span>'
        badges = "".join(f'<span class="badge {badge}">{badge}</span>' for badge in row["badges"])
        texts = [row.get(f"{column}_text", "") for column in COLUMNS]
        cells.append([name, badges, *map(escape, (*texts, row["reasons"]))])
    return table(["run", "badges", *COLUMNS.values(), "reasons of the badges"], cells, are_html=True)


def _records(runs: Sequence[Run], heading: str, name: str, view: View, names: Sequence[str]) -> str:
    """Return the charts of all runs together, then the charts by steps k of each run, folded after the first run."""
    by_run = [chart for chart in names if chart in BY_RUN]
    shared = _grid(runs, view, [chart for chart in names if chart not in by_run], name)
    run_view = replace(view, max_points=max(MIN_POINTS, BY_RUN_POINTS // len(runs)))
    grids = [_grid([run], run_view, by_run, f"{name}-{index}") for index, run in enumerate(runs)]
    parts = [
        folded(f"every step k of {run.name}", grid, is_open=run is runs[0])
        for run, grid in zip(runs, grids, strict=True)
        if grid
    ]
    return f"<section><h2>{escape(heading)}</h2>{shared}{''.join(parts)}</section>"


def _grid(runs: Sequence[Run], view: View, names: Sequence[str], records: str) -> str:
    found = charts(runs, view, names)
    sections = [_section(chart, f"{chart.name}-{records}") for chart in found if not chart.is_empty]
    return f"<div class='grid'>{''.join(sections)}</div>" if sections else ""


def _section(chart: Chart, name: str) -> str:
    figure = json_text(finite(chart.figure)).replace("<", "\\u003c")  # otherwise "</script>" in a name ends the script
    plot_id = escape(name)
    values = folded("values", scroll(table(*chart.table[:2]), chart.title))
    return (
        f"<section class='chart'><h2>{escape(chart.title)}</h2><p class='caption'>{escape(chart.caption)}</p>\n"
        f'<div role="img" aria-label="{escape(chart.alt)}"><div class="plot" id="{plot_id}"></div></div>\n'
        f'<script type="application/json" id="{plot_id}-figure">{figure}</script>\n{values}</section>\n'
    )
