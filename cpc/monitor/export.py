"""The page as one file that needs neither server nor network: the charts as they are now."""

import json
import time
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path

from plotly.offline import get_plotlyjs

from cpc.data.atomic import write_atomically
from cpc.monitor.charts import charts
from cpc.monitor.figure import GRAPH_CONFIG, RUN_COLOURS, Chart
from cpc.monitor.kinds import BOUND
from cpc.monitor.library import Library
from cpc.monitor.overview import COLUMNS, Row, differences, overview
from cpc.monitor.view import Split, View

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
for (const plot of plots) {
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
</script>
"""


def write_export(path: Path, library: Library) -> None:
    """Write the page: the run table, every chart of training and held-out records, options that differ.

    Raises:
        ValueError: if the library holds no run.
    """
    if not library.runs:
        raise ValueError(f"no run below {', '.join(map(str, library.roots))}: a run is a folder with bound.jsonl")
    style = resources.files("cpc.monitor").joinpath("assets/monitor.css").read_text(encoding="utf-8")
    rows = overview(library, View())
    parts = [
        f"<h1>cpc monitor</h1><p class='caption'>{len(rows)} runs, as of {time.strftime('%Y-%m-%d %H:%M:%S %Z')}.</p>",
        _runs(rows),
        *(f"<section><h2>{words}</h2><div class='grid'>{found}</div></section>" for words, found in _sections(library)),
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


def _sections(library: Library) -> list[tuple[str, str]]:
    """(heading, charts) of training, and of held-out records where there are any; what they share stands once."""
    runs = list(library.runs.values())
    found: list[tuple[str, str]] = []
    for split in ("training", "held-out"):
        tables = [t for run in runs for t in run.tables(BOUND) if (t.key.names[0] == "train") == (split == "training")]
        if tables or split == "training":
            view = _view(library, "training" if split == "training" else "held-out")
            shown = [chart for chart in charts(runs, view) if not chart.is_empty]
            if found:
                shown = [chart for chart in shown if chart.name in ("bound", "steps", "heat", "loss", "accuracy")]
            found.append((f"{split} records", "".join(_section(chart, split) for chart in shown)))
    return found


def _view(library: Library, split: Split) -> View:
    names = tuple(library.runs)
    return View(runs=names, colours=tuple(range(len(names))), focus=names[0], split=split, theme="page")


def _section(chart: Chart, split: str) -> str:
    name = f"{chart.name}-{split}"
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
