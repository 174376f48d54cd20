"""Tables and lists of the page, as nodes that the page's own JavaScript shows (assets/markup.js).

Dash keeps a component for every element that it is given, and looks at each of them at every change: of the thousands
of cells that a hundred runs have, that takes minutes. A node is [tag, attributes, words or nodes].
"""

from collections.abc import Sequence
from typing import Any

from cpc.monitor.figure import RUN_COLOURS
from cpc.monitor.overview import COLUMNS, Row

Node = list[Any]


def node(tag: str, content: "str | Sequence[Node]" = "", **attributes: str) -> Node:
    """An element; a keyword that Python reserves ends in `_`, and `_` within stands for `-`.

    >>> node("td", "1.2", class_="age", aria_label="age")
    ['td', {'class': 'age', 'aria-label': 'age'}, '1.2']
    """
    named = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
    return [tag, named, content if isinstance(content, str) else list(content)]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Node:
    """Words in cells; the first of a row names it."""
    head = node("tr", [node("th", cell, scope="col") for cell in header])
    body = [node("tr", [node("th", row[0], scope="row"), *(node("td", cell) for cell in row[1:])]) for row in rows]
    return node("table", [node("thead", [head]), node("tbody", body)])


def run_table(rows: Sequence[Row], hidden: Sequence[str], sort_by: str, descending: bool) -> Node:
    """The table of runs, with buttons that show, hide and sort: they carry `data-show` or `data-sort`."""

    def heading(column: str, words: str) -> Node:
        state = 0 if sort_by != column else 1 + descending
        button = node("button", words + ("", " \u2191", " \u2193")[state], id=f"sort-{column}", data_sort=column)
        order = ("none", "ascending", "descending")[state]
        return node("th", [button], scope="col", class_="text" if column == "name" else "", aria_sort=order)

    def row_of(row: Row) -> Node:
        is_shown = row.name not in hidden
        show = node(
            "button",
            "\u25cf" if is_shown else "\u25cb",
            class_="show",
            role="checkbox",
            style=f"color: {RUN_COLOURS[row.colour % len(RUN_COLOURS)]}",
            aria_checked=str(is_shown).lower(),
            aria_label=f"show {row.name}",
            data_show=row.name,
        )
        marks = [node("span", each.name, class_=f"badge {each.name}", title=each.reason) for each in row.badges]
        cells = [node("td", row.words(column), class_=column) for column in list(COLUMNS)[1:]]
        name = node("th", row.name, scope="row")
        return node("tr", [node("td", [show]), name, node("td", marks, class_="text"), *cells], id=f"run-{row.name}")

    headings = [heading(column, words) for column, words in COLUMNS.items()]
    badges = node("th", "badges", scope="col", class_="text")
    head = node("tr", [node("th", "show", scope="col"), headings[0], badges, *headings[1:]])
    return node("table", [node("thead", [head]), node("tbody", [row_of(row) for row in rows])])


def reasons(rows: Sequence[Row]) -> Node:
    """What the badges say, run by run."""
    sentences = [
        node("li", [node("b", row.name), node("span", f": {sentence}")]) for row in rows for sentence in row.sentences
    ]
    return node("ul", sentences) if sentences else node("p", "No run has any.")
