"""HTML elements that every page shares: the head, tables, and areas that scroll."""

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from cpc.data.store.atomic import write_atomically

# The policy forbids the browser to load anything from outside the page.
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:">
<title>{}</title>
<style>{}</style><script>{}</script></head>
<body><main>
{}</main>
{}</body></html>
"""


def write_document(path: Path, title: str, body: str, plotly: str = "", scripts: str = "") -> None:
    """Write a page in the style of `cpc monitor`; `plotly` is Plotly's JavaScript, and `scripts` run after the body."""
    style = files("cpc.monitor").joinpath("assets/monitor.css").read_text(encoding="utf-8")
    with write_atomically(path) as new:
        new.write_text(_PAGE.format(escape(title), style, plotly, body, scripts), encoding="utf-8")


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, are_html: bool = False) -> str:
    """Return a table as HTML; the first cell of a row is the row's heading. The cells are texts unless `are_html`.

    >>> table([], [["1 < 2"]])
    '<table><thead><tr></tr></thead><tbody><tr><th scope="row">1 &lt; 2</th></tr></tbody></table>'
    """
    head_row = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    body = ""
    for row in rows:
        heading, *cells = row if are_html else map(escape, row)
        body += f'<tr><th scope="row">{heading}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
    return f"<table><thead><tr>{head_row}</tr></thead><tbody>{body}</tbody></table>"


def scroll(content: str, label: str) -> str:
    """Return an area of HTML with a scroll bar, which also scrolls by keyboard."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">{content}</div>'


def folded(summary: str, content: str, *, is_open: bool = False) -> str:
    """Return HTML that is shown when its summary is clicked."""
    return f"<details{' open' * is_open}><summary>{escape(summary)}</summary>{content}</details>"
