"""An HTML page with a section per chart, which needs neither network nor server.

Below every chart is a table of its values, for keyboards, screen readers and tests.
"""

from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path

from cpc.config.extras import install_hint
from cpc.pages.chart import Chart
from cpc.pages.html import PLOT_CONFIG, folded, render, scroll, table, write_document

STYLE = """<style>
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
.gridlayer path, .zerolinelayer path { stroke: var(--line) !important; }
</style>
"""


def write_sections(path: Path, parts: Iterable[str], how_to_read: Iterable[str], title: str = "cpc quickstart") -> None:
    """Write a page: Plotly, the parts, and a section that explains them.

    Args:
        path: the HTML file.
        parts: pieces of HTML; an iterator is read only after Plotly was imported.
        how_to_read: HTML of the section on how to read the charts.
        title: title of the window.

    Raises:
        ValueError: if plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ValueError(f"{path.name} needs plotly: {install_hint('dashboard')}") from error
    body = f"{''.join(parts)}<section><h2>How to read this</h2>\n{''.join(how_to_read)}</section>"
    write_document(path, title, STYLE, get_plotlyjs(), body)


def sections(charts: Iterable[Chart]) -> Iterator[str]:
    """Yield the HTML of a section for each chart. The table of the first chart is open, all others are folded."""
    for number, chart in enumerate(charts, start=1):
        yield _chart_section(chart, f"chart-{number}")


def _chart_section(chart: Chart, name: str) -> str:
    from plotly.io import to_html

    plot = to_html(chart.figure, config=PLOT_CONFIG, include_plotlyjs=False, full_html=False, div_id=name)
    values = render(scroll(table(*chart.table[:2]), f"Values: {chart.title}"))
    return (
        f"<section><h2>{escape(chart.title)}</h2><p>{escape(chart.caption)}</p>\n"
        f'<div role="img" aria-label="{escape(chart.alt)}">{plot}</div>\n'
        f"{folded('values', values, is_open=name == 'chart-1')}</section>\n"
    )
