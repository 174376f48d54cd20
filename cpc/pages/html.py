"""HTML elements that every page shares: the head, tables, and areas that scroll."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from cpc.data.store.atomic import write_atomically

Node = list[Any]  # [tag, attributes, text or child nodes]

PLOT_CONFIG = {
    "responsive": True,
    "displaylogo": False,
    # The buttons are listed because Plotly's default buttons include a button that uploads the chart.
    "modeBarButtons": [["toImage"], ["zoom2d", "resetScale2d"]],
    "showSendToCloud": False,
}


def head(title: str) -> str:
    """Return the start of a page, with a policy that forbids the browser to load anything from outside the page."""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:">
<title>{escape(title)}</title>
"""


def write_document(path: Path, title: str, style: str, plotly: str, body: str, scripts: str = "") -> None:
    """Write a page with Plotly's JavaScript, which `plotly` holds; `scripts` run after the body."""
    with write_atomically(path) as new:
        new.write_text(
            f"{head(title)}{style}<script>{plotly}</script></head>\n"
            f"<body><main>\n{body}</main>\n{scripts}</body></html>\n",
            encoding="utf-8",
        )


def node(tag: str, content: "str | Sequence[Node]" = "", **attributes: str) -> Node:
    """Return an element.

    A trailing `_` of a keyword is dropped (for reserved words of Python), and any other `_` becomes `-`.

    >>> node("td", "1.2", class_="age", aria_label="age")
    ['td', {'class': 'age', 'aria-label': 'age'}, '1.2']
    """
    html_attributes = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
    return [tag, html_attributes, content if isinstance(content, str) else list(content)]


def render(element: Node) -> str:
    """Return a node as HTML text.

    >>> render(node("td", [node("b", "1 < 2")], class_="age"))
    '<td class="age"><b>1 &lt; 2</b></td>'
    """
    tag, attributes, content = element
    attribute_text = "".join(f' {name}="{escape(value)}"' for name, value in attributes.items())
    inner = escape(content) if isinstance(content, str) else "".join(map(render, content))
    return f"<{tag}{attribute_text}>{inner}</{tag}>"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Node:
    """Return a table of text cells; the first cell of a row is the row's heading."""
    head_row = node("tr", [node("th", cell, scope="col") for cell in header])
    body = [node("tr", [node("th", row[0], scope="row"), *(node("td", cell) for cell in row[1:])]) for row in rows]
    return node("table", [node("thead", [head_row]), node("tbody", body)])


def scroll(content: Node, label: str) -> Node:
    """Return an area with a scroll bar, which also scrolls by keyboard."""
    return node("div", [content], class_="scroll", tabindex="0", role="region", aria_label=label)


def folded(summary: str, content: str, *, is_open: bool = False) -> str:
    """Return HTML that is shown when its summary is clicked."""
    return f"<details{' open' * is_open}><summary>{escape(summary)}</summary>{content}</details>"
