"""The page as one file that needs neither server nor network: the charts as they are now."""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from html import escape
from importlib import resources
from pathlib import Path

from plotly.offline import get_plotlyjs

from cpc.data.store.atomic import write_atomically
from cpc.monitor.charts import NAMES, charts
from cpc.monitor.figure import GRAPH_CONFIG, RUN_COLOURS, Chart
from cpc.monitor.kinds import BOUND
from cpc.monitor.legible import legible
from cpc.monitor.library import Library
from cpc.monitor.overview import COLUMNS, Row, differences, overview
from cpc.monitor.run import Run
from cpc.monitor.view import MAX_POINTS, View

BY_RUN = ("steps", "heat", "profile")
OVERLAID = tuple(name for name in NAMES if name not in BY_RUN)
OF_BOUND = ("bound", "loss", "accuracy")
BY_RUN_POINTS = 4 * MAX_POINTS  # in the charts of all runs together, so that a hundred runs still make a file to send
MIN_POINTS = 1500
# The browser itself refuses whatever would leave the page.
HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:">
<title>cpc monitor</title>
"""
# The reader's system decides between light and dark: text takes the page's colour, whatever a figure says.
THEME = """
.js-plotly-plot g:not(.hovertext) > text { fill: var(--text) !important; }
.gridlayer path, .zerolinelayer path { stroke: var(--line) !important; }
.plot { height: 340px; }
"""
DRAW = """<script>
document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
const config = JSON.parse(document.getElementById("graph-config").textContent);
const plots = [...document.querySelectorAll(".plot")];
function draw(plot) {
  const figure = JSON.parse(document.getElementById(plot.id + "-figure").textContent);
  Plotly.newPlot(plot, figure.data, figure.layout, config);
  // One zoom for all charts of training steps.
  plot.on("plotly_relayout", (change) => {
    if (plot.isFollowing) return;
    const low = change["xaxis.range[0]"], high = change["xaxis.range[1]"];
    if (low === undefined && !change["xaxis.autorange"]) return;
    const same = low === undefined ? { "xaxis.autorange": true } : { "xaxis.range": [low, high] };
    for (const other of plots.filter((each) => each !== plot && each.data && !each.layout.xaxis.fixedrange)) {
      other.isFollowing = true;
      Plotly.relayout(other, same).then(() => { other.isFollowing = false; });
    }
  });
}
// Hundreds of charts at once would keep the reader waiting: those of a run are drawn when its part is opened.
const isFolded = (plot) => plot.closest("details:not([open])") !== null;
plots.filter((plot) => !isFolded(plot)).forEach(draw);
for (const part of document.querySelectorAll("details")) {
  part.addEventListener("toggle", () => {
    plots.filter((plot) => part.contains(plot) && !plot.data && !isFolded(plot)).forEach(draw);
  });
}
</script>
"""


def write_export(path: Path, library: Library) -> None:
    """Write the page: run table, every chart of training and of each strategy held out, steps k by run, and options.

    Raises:
        ValueError: if the library holds no run.
    """
    if not library.runs:
        raise ValueError(
            f"no run below {legible(', '.join(map(str, library.roots)))}: a run is a folder with bound.jsonl"
        )
    style = resources.files("cpc.monitor").joinpath("assets/monitor.css").read_text(encoding="utf-8")
    sections = list(_sections(library))  # first: the table's notes tell what could not be drawn
    rows = overview(library, View())
    parts = [
        f"<h1>cpc monitor</h1><p class='caption'>{len(rows)} runs, as of {time.strftime('%Y-%m-%d %H:%M:%S %Z')}.</p>",
        _runs(rows),
        *sections,
        _options(library),
    ]
    with write_atomically(path) as new:
        new.write_text(
            f"{HEAD}<style>{style}{THEME}</style><script>{get_plotlyjs()}</script></head>\n"
            f"<body><main>\n{''.join(parts)}</main>\n"
            f'<script type="application/json" id="graph-config">{json.dumps(GRAPH_CONFIG)}</script>\n'
            f"{DRAW}</body></html>\n",
            encoding="utf-8",
        )


def _sections(library: Library) -> Iterator[str]:
    """Training, then each strategy held out; what they share stands once."""
    runs = list(library.runs.values())
    strategies = dict.fromkeys(
        table.key.names[1] for run in runs for table in run.tables(BOUND) if table.key.names[0] != "train"
    )
    yield _records(library, "training records", "training", View(split="training"), OVERLAID, BY_RUN)
    for strategy in strategies:
        name, view = f"held-out-{strategy}", View(split="held-out", strategy=strategy)
        yield _records(library, f"held-out records, negatives {strategy}", name, view, OF_BOUND, ("steps", "heat"))


def _records(
    library: Library, heading: str, name: str, view: View, overlaid: Sequence[str], by_run: Sequence[str]
) -> str:
    """All runs overlaid, then each of them by steps k, folded unless it is the first; points in fair shares."""
    runs, places = list(library.runs.values()), tuple(library.places[each] for each in library.runs)
    view = replace(view, runs=tuple(library.runs), colours=places, theme="page")
    shared = "".join(_section(chart, name) for chart in _drawn(library, runs, view, overlaid))
    folded = []
    share = replace(view, max_points=max(MIN_POINTS, BY_RUN_POINTS // len(runs)))
    for run in runs:
        charts_of_run = _drawn(library, [run], replace(share, focus=run.name), by_run)
        if charts_of_run:
            grid = "".join(_section(chart, f"{name}-{library.places[run.name]}") for chart in charts_of_run)
            is_open = " open" * (run is runs[0])
            folded.append(
                f"<details{is_open}><summary>every step k of {escape(run.name)}</summary>"
                f"<div class='grid'>{grid}</div></details>"
            )
    return f"<section><h2>{escape(heading)}</h2><div class='grid'>{shared}</div>{''.join(folded)}</section>"


def _drawn(library: Library, runs: Sequence[Run], view: View, names: Sequence[str]) -> list[Chart]:
    found = library.of_sound(runs, partial(charts, view=view))
    return [chart for chart in found if chart.name in names and not chart.is_empty]


def _section(chart: Chart, records: str) -> str:
    name = escape(f"{chart.name}-{records}")
    figure = json.dumps(chart.figure).replace("<", "\\u003c")  # no text in it may end the script
    return (
        f"<section class='chart'><h2>{escape(chart.title)}</h2><p class='caption'>{escape(chart.caption)}</p>\n"
        f'<div role="img" aria-label="{escape(chart.alt)}"><div class="plot" id="{name}"></div></div>\n'
        f'<script type="application/json" id="{name}-figure">{figure}</script>\n'
        f"<details><summary>values</summary>{_table(chart.header, chart.rows, chart.title)}</details></section>\n"
    )


def _runs(rows: Sequence[Row]) -> str:
    cells = []
    for row in rows:
        marks = ", ".join(badge.name for badge in row.badges)
        cells.append([row.name, marks, *(row.words(column) for column in list(COLUMNS)[1:])])
    colours = [RUN_COLOURS[row.colour % len(RUN_COLOURS)] for row in rows]
    reasons = [f"<li><b>{escape(row.name)}</b>: {escape(sentence)}</li>" for row in rows for sentence in row.sentences]
    listed = f"<details><summary>What the badges say</summary><ul>{''.join(reasons)}</ul></details>" if reasons else ""
    return _table(["run", "badges", *list(COLUMNS.values())[1:]], cells, "Table of runs", colours) + listed


def _options(library: Library) -> str:
    header, rows = differences(list(library.runs.values()))
    if not rows:
        return ""
    table = _table(header, rows, "Options that differ")
    return f"<details class='config'><summary>Configurations: where they differ</summary>{table}</details>"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], label: str, dots: Sequence[str] = ()) -> str:
    marks = [f"<span aria-hidden='true' style='color: {colour}'>\u25cf</span> " for colour in dots] or [""] * len(rows)
    head = "".join(f"<th scope='col'>{escape(cell)}</th>" for cell in header)
    body = "\n".join(
        f"<tr><th scope='row'>{mark}{escape(first)}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in rest)}</tr>"
        for mark, (first, *rest) in zip(marks, rows, strict=True)
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>"
    )
