"""Sections of charts as one HTML page that needs nothing else, neither network nor server.

Every chart has its values in a table beneath it, for keyboards, screen readers and tests.
"""

from base64 import b64encode
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

from cpc.config.extras import install_hint
from cpc.data.store.atomic import write_atomically
from cpc.pages.charts import Chart, Table

CONFIG = {
    "responsive": True,
    "displaylogo": False,
    # By name: what Plotly offers by default includes a button that uploads the chart.
    "modeBarButtons": [["toImage"], ["zoom2d", "resetScale2d"]],
    "showSendToCloud": False,
}
# The policy makes the browser itself refuse whatever would leave the page.
HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:">
<title>{title}</title>
<style>
:root { color-scheme: light dark; --page: #ffffff; --text: #1d2129; --faint: #565d68; --line: #d5d9df; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14171c; --text: #e6e8ec; --faint: #a3abb6; --line: #3a414c; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 1rem; background: var(--page); color: var(--text);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0.5rem 0; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 0.25rem; }
p { margin: 0.4rem 0; }
.facts, caption { color: var(--faint); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 0.2rem 1rem 0.2rem 0; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th:first-child { text-align: left; position: sticky; left: 0; background: var(--page); }
@media (max-width: 30rem) { table { font-size: 0.8rem; } th, td { padding-right: 0.5rem; } }
summary { cursor: pointer; padding: 0.3rem 0; }
.js-plotly-plot g:not(.hovertext) > text { fill: var(--text) !important; }
.xerror { stroke: var(--text) !important; }
img { max-width: 100%; height: auto; border-radius: 0.3rem; }
.gridlayer path, .zerolinelayer path { stroke: var(--line) !important; }
</style>
"""


class Picture(NamedTuple):
    """A PNG file that becomes part of the page, with its words for those who see it and for those who do not."""

    title: str
    caption: str
    alt: str
    path: Path


def write_sections(path: Path, parts: Iterable[str], reading: Iterable[str], title: str = "cpc quickstart") -> None:
    """Write a page of these parts, with Plotly before them and words on how to read them after them.

    Args:
        path: the HTML file.
        parts: HTML; taken once Plotly is known to be there.
        reading: HTML, how to read them.
        title: of the window.

    Raises:
        ValueError: if plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ValueError(f"{path.name} needs plotly: {install_hint('dashboard')}") from error
    head = HEAD.replace("{title}", escape(title))
    with write_atomically(path) as new:
        new.write_text(
            f"{head}<script>{get_plotlyjs()}</script></head>\n<body><main>\n{''.join(parts)}"
            f"<section><h2>How to read this</h2>\n{''.join(reading)}</section></main></body></html>\n",
            encoding="utf-8",
        )


def sections(figures: Iterable[Chart | Picture]) -> Iterator[str]:
    """A section for each figure; chart 1, which the page is about, shows its table at once."""
    num_charts = 0
    for figure in figures:
        if isinstance(figure, Picture):
            yield _picture(figure)
        else:
            num_charts += 1
            yield _section(figure, f"chart-{num_charts}")


def _picture(picture: Picture) -> str:
    content = b64encode(picture.path.read_bytes()).decode()
    return (
        f"<section><h2>{escape(picture.title)}</h2><p>{escape(picture.caption)}</p>\n"
        f'<img alt="{escape(picture.alt)}" src="data:image/png;base64,{content}"></section>\n'
    )


def _section(chart: Chart, name: str) -> str:
    from plotly.io import to_html

    figure = {"data": chart.traces, "layout": chart.layout}
    plot = to_html(figure, config=CONFIG, include_plotlyjs=False, full_html=False, div_id=name)
    is_open = " open" if name == "chart-1" else ""
    return (
        f"<section><h2>{escape(chart.title)}</h2><p>{escape(chart.caption)}</p>\n"
        f'<div role="img" aria-label="{escape(chart.alt)}">{plot}</div>\n'
        f"<details{is_open}><summary>values</summary>{_table(chart.table, chart.title)}</details></section>\n"
    )


def _table(table: Table, title: str) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in table.header)
    rows = "\n".join(
        f'<tr><th scope="row">{escape(name)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in cells)}</tr>'
        for name, *cells in table.rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="Values: {escape(title)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table></div>"
    )
