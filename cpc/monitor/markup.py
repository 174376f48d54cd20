"""Headings and tables of the page, as nodes (`cpc.pages.html`) that the page's own JavaScript shows (assets/markup.js).

Dash would keep a component for every element and check all of them at every change. With the thousands of cells of a
hundred runs, this takes minutes.
"""

from collections.abc import Sequence

from cpc.monitor.overview import COLUMNS, Row
from cpc.pages.chart import Chart
from cpc.pages.html import Node, node

_EMPTY = "No run shown has such records yet."


def chart_heading(chart: Chart, name: str) -> Node:
    """Return a chart's heading and caption, and its text alternative with the id `alt-NAME`."""
    caption, class_ = (_EMPTY, "caption is-empty") if chart.is_empty else (chart.caption, "caption")
    heading = [node("h2", chart.title), node("p", caption, class_=class_)]
    return node("div", [*heading, node("p", chart.alt, id=f"alt-{name}", hidden="")])


def run_table(
    rows: Sequence[Row], hidden: Sequence[str] = (), sort_by: str = "", descending: bool = False, is_live: bool = True
) -> Node:
    """Return the table of runs; on the live page it has buttons to show, hide and sort (`data-show`, `data-sort`)."""

    def heading(column: str) -> Node:
        name, class_ = COLUMNS[column], "text" if column == "name" else ""
        if not is_live:
            return node("th", name, scope="col", class_=class_)
        order = "none" if sort_by != column else "descending" if descending else "ascending"
        arrow = {"none": "", "ascending": " \u2191", "descending": " \u2193"}[order]
        button = node("button", name + arrow, id=f"sort-{column}", data_sort=column)
        return node("th", [button], scope="col", class_=class_, aria_sort=order)

    def marker(row: Row) -> Node:
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
        marks = [node("span", badge.name, class_=f"badge {badge.name}", title=badge.reason) for badge in row.badges]
        cells = [node("td", row.text(column), class_=column) for column in columns]
        name = node("th", row.name, scope="row")
        return node(
            "tr", [node("td", [marker(row)]), name, node("td", marks, class_="text"), *cells], id=f"run-{row.name}"
        )

    columns = list(COLUMNS)[1:]
    before = [node("th", "show" if is_live else "colour", scope="col"), heading("name")]
    head = node("tr", [*before, node("th", "badges", scope="col", class_="text"), *map(heading, columns)])
    return node("table", [node("thead", [head]), node("tbody", [row_node(row) for row in rows])])


def badge_reasons(rows: Sequence[Row]) -> Node:
    """Return a list of the reasons of all badges, by run."""
    sentences = [
        node("li", [node("b", row.name), node("span", f": {sentence}")]) for row in rows for sentence in row.sentences
    ]
    return node("ul", sentences) if sentences else node("p", "No run has any.")
