"""A chart of a page: a figure with its caption, its text alternative and a table of its values.

Figures are plain dicts with Plotly's attribute names (`line_color` stands for `line.color`), so that this module does
not need Plotly.
"""

import math
from typing import Any, NamedTuple, SupportsFloat

from cpc.pages.palette import BLUE, GREY
from cpc.pages.report import Table

_TRANSPARENT = "rgba(0,0,0,0)"  # a page is light or dark
SHARED_LAYOUT = {
    "template": "none",
    "paper_bgcolor": _TRANSPARENT,
    "plot_bgcolor": _TRANSPARENT,
    "modebar": {"bgcolor": _TRANSPARENT, "color": GREY, "activecolor": BLUE},
    "legend": {"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0},
}


class Chart(NamedTuple):
    """A figure with its title, its caption, a text alternative for screen readers, and its values."""

    title: str
    caption: str
    alt: str
    traces: list[dict[str, Any]]
    layout: dict[str, Any]
    table: Table
    name: str = ""  # the chart's section on the page of `cpc monitor`

    @property
    def figure(self) -> dict[str, Any]:
        """Plotly's figure."""
        return {"data": self.traces, "layout": self.layout}

    @property
    def is_empty(self) -> bool:
        """Whether there are no records for the chart. A chart that is zoomed between two records is not empty."""
        return not self.table.rows


def number(value: SupportsFloat | None, digits: int = 3) -> str:
    """Return a value as text.

    >>> number(1.23456), number(None), number(float("nan"))
    ('1.235', 'n/a', 'n/a')
    """
    return "n/a" if value is None or not math.isfinite(value) else f"{float(value):.{digits}f}"
