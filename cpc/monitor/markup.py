"""Tables and words of the page, as nodes that the page's own JavaScript shows (assets/markup.js).

Dash keeps a component for every element that it is given, and looks at each of them at every change: of the thousands
of cells that a hundred runs have, that takes minutes. A node is [tag, attributes, words or nodes].
"""

from collections.abc import Sequence
from html import escape
from typing import Any

from cpc.monitor.figure import Chart
from cpc.monitor.overview import COLUMNS, Row

Node = list[Any]
_EMPTY = "No run shown has such records yet."


def node(tag: str, content: "str | Sequence[Node]" = "", **attributes: str) -> Node:
    """An element; a keyword that Python reserves ends in `_`, and `_` within stands for `-`.

    >>> node("td", "1.2", class_="age", aria_label="age")
    ['td', {'class': 'age', 'aria-label': 'age'}, '1.2']
    """
    named = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
    return [tag, named, content if isinstance(content, str) else list(content)]


def html(written: Node) -> str:
    """A node as text.

    >>> html(node("td", [node("b", "1 < 2")], class_="age"))
    '<td class="age"><b>1 &lt; 2</b></td>'
    """
    tag, attributes, content = written
    named = "".join(f' {name}="{escape(value)}"' for name, value in attributes.items())
    return f"<{tag}{named}>{escape(content) if isinstance(content, str) else ''.join(map(html, content))}</{tag}>"


def words(chart: Chart, name: str) -> Node:
    """A chart's heading and caption, and the figure in words for screen readers, with the id `alt-NAME`."""
    caption, class_ = (_EMPTY, "caption is-empty") if chart.is_empty else (chart.caption, "caption")
    heading = [node("h2", chart.title), node("p", caption, class_=class_)]
    return node("div", [*heading, node("p", chart.alt, id=f"alt-{name}", hidden="")])


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Node:
    """Words in cells; the first of a row names it."""
    head = node("tr", [node("th", cell, scope="col") for cell in header])
    body = [node("tr", [node("th", row[0], scope="row"), *(node("td", cell) for cell in row[1:])]) for row in rows]
    return node("table", [node("thead", [head]), node("tbody", body)])


def scroll(content: Node, label: str) -> Node:
    """A part that scrolls by itself, by keyboard too."""
    return node("div", [content], class_="scroll", tabindex="0", role="region", aria_label=label)


def run_table(
    rows: Sequence[Row], hidden: Sequence[str] = (), sort_by: str = "", descending: bool = False, is_live: bool = True
) -> Node:
    """The table of runs; on the live page buttons show, hide and sort, by `data-show` or `data-sort`."""

    def heading(column: str) -> Node:
        name, class_ = COLUMNS[column], "text" if column == "name" else ""
        if not is_live:
            return node("th", name, scope="col", class_=class_)
        order = "none" if sort_by != column else "descending" if descending else "ascending"
        arrow = {"none": "", "ascending": " \u2191", "descending": " \u2193"}[order]
        button = node("button", name + arrow, id=f"sort-{column}", data_sort=column)
        return node("th", [button], scope="col", class_=class_, aria_sort=order)

    def first(row: Row) -> Node:
        colour = f"color: {row.colour}"
        if not is_live:
            return node("span", "\u25cf", aria_hidden="true", style=colour)
        is_shown = row.name not in hidden
        return node(
            "button",
            "\u25cf" if is_shown else "\u25cb",
            class_="show",
            role="checkbox",
            style=colour,
            aria_checked=str(is_shown).lower(),
            aria_label=f"show {row.name}",
            data_show=row.name,
        )

    def row_node(row: Row) -> Node:
        marks = [node("span", each.name, class_=f"badge {each.name}", title=each.reason) for each in row.badges]
        cells = [node("td", row.words(column), class_=column) for column in columns]
        name = node("th", row.name, scope="row")
        return node(
            "tr", [node("td", [first(row)]), name, node("td", marks, class_="text"), *cells], id=f"run-{row.name}"
        )

    columns = list(COLUMNS)[1:]
    before = [node("th", "show" if is_live else "colour", scope="col"), heading("name")]
    head = node("tr", [*before, node("th", "badges", scope="col", class_="text"), *map(heading, columns)])
    return node("table", [node("thead", [head]), node("tbody", [row_node(row) for row in rows])])


def badge_reasons(rows: Sequence[Row]) -> Node:
    """What the badges say, run by run."""
    sentences = [
        node("li", [node("b", row.name), node("span", f": {sentence}")]) for row in rows for sentence in row.sentences
    ]
    return node("ul", sentences) if sentences else node("p", "No run has any.")
