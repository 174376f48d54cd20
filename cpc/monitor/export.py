"""The page as one file that needs neither server nor network: the charts as they are now."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from html import escape
from importlib import resources
from pathlib import Path

from plotly.offline import get_plotlyjs

from cpc.data.store.atomic import finite, json_text, write_atomically
from cpc.monitor.charts import BY_RUN, NAMES, charts
from cpc.monitor.figure import GRAPH_CONFIG, Chart
from cpc.monitor.record_types import BOUND
from cpc.monitor.text import replace_surrogates
from cpc.monitor.library import Library
from cpc.monitor.markup import html, node, badge_reasons, run_table, scroll, table, words
from cpc.monitor.overview import config_differences, overview
from cpc.monitor.run import Run
from cpc.monitor.view import MAX_POINTS, View

BY_RUN_POINTS = 4 * MAX_POINTS  # in the charts of all runs together, so that a hundred runs still make a file to send
MIN_POINTS = 1500
# The browser itself refuses whatever would leave the page.
HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:">
<title>cpc monitor</title>
"""


def write_export(path: Path, library: Library) -> None:
    """Write the page: run table, every chart of training and of each strategy held out, steps k by run, and options.

    Raises:
        ValueError: if the library holds no run.
    """
    if not library.runs:
        raise ValueError(
            f"no run below {replace_surrogates(', '.join(map(str, library.roots)))}: a run is a folder with bound.jsonl"
        )
    assets = resources.files("cpc.monitor").joinpath("assets")
    style, own_style, draw = (
        assets.joinpath(name).read_text(encoding="utf-8") for name in ("monitor.css", "export.css", "export.js")
    )
    sections = "".join(_sections(library))  # first: the notes in the table say what could not be drawn
    rows = overview(library)
    badges = _folded("What the badges say", html(badge_reasons(rows)))
    header, options = config_differences(list(library.runs.values()))
    differing = html(node("div", [scroll(table(header, options), "Options that differ")], class_="config"))
    with write_atomically(path) as new:
        new.write_text(
            f"{HEAD}<style>{style}{own_style}</style><script>{get_plotlyjs()}</script></head>\n<body><main>\n"
            f"<h1>cpc monitor</h1>"
            f"<p class='caption'>{len(rows)} runs, as of {time.strftime('%Y-%m-%d %H:%M:%S %Z')}.</p>\n"
            f"{html(scroll(run_table(rows, is_live=False), 'Table of runs'))}{badges}\n{sections}"
            f"{_folded('Configurations: where they differ', differing) if options else ''}</main>\n"
            f'<script type="application/json" id="graph-config">{json_text(GRAPH_CONFIG)}</script>\n'
            f"<script>{draw}</script></body></html>\n",
            encoding="utf-8",
        )


def _sections(library: Library) -> Iterator[str]:
    """Training, then each strategy held out without what does not depend on it."""
    tables = [table for run in library.runs.values() for table in run.tables(BOUND)]
    strategies = dict.fromkeys(table.key.names[1] for table in tables if table.key.names[0] != "train")
    yield _records(library, "training records", "training", View(), NAMES)
    for strategy in strategies:
        heading, view = f"held-out records, negatives {strategy}", View(split="held-out", strategy=strategy)
        yield _records(library, heading, f"held-out-{strategy}", view, ("bound", "loss", "accuracy", "steps", "heat"))


def _records(library: Library, heading: str, name: str, view: View, names: Sequence[str]) -> str:
    """All runs overlaid, then each of them by steps k, folded unless it is the first; points in fair shares."""
    runs = list(library.runs.values())
    view = replace(view, theme="page")
    by_run = [each for each in names if each in BY_RUN]
    shared = _grid(library, runs, view, [each for each in names if each not in by_run], name)
    share = replace(view, max_points=max(MIN_POINTS, BY_RUN_POINTS // len(runs)))
    folded = []
    for number, run in enumerate(runs):
        grid = _grid(library, [run], share, by_run, f"{name}-{number}")
        if grid:
            folded.append(_folded(f"every step k of {run.name}", grid, is_open=run is runs[0]))
    return f"<section><h2>{escape(heading)}</h2>{shared}{''.join(folded)}</section>"


def _grid(library: Library, runs: Sequence[Run], view: View, names: Sequence[str], records: str) -> str:
    found = library.skip_unreadable(runs, partial(charts, view=view, names=names))
    drawn = [_section(chart, f"{chart.name}-{records}") for chart in found if not chart.is_empty]
    return f"<div class='grid'>{''.join(drawn)}</div>" if drawn else ""


def _section(chart: Chart, name: str) -> str:
    figure = json_text(finite(chart.figure)).replace("<", "\\u003c")  # no text in it may end the script
    place = escape(name)
    values = _folded("values", html(scroll(table(chart.header, chart.rows), chart.title)))
    return (
        f"<section class='chart'>{html(words(chart, name))}\n"
        f'<div role="img" aria-labelledby="alt-{place}"><div class="plot" id="{place}"></div></div>\n'
        f'<script type="application/json" id="{place}-figure">{figure}</script>\n{values}</section>\n'
    )


def _folded(summary: str, content: str, *, is_open: bool = False) -> str:
    return f"<details{' open' * is_open}><summary>{escape(summary)}</summary>{content}</details>"
