"""A chart of a page: a figure with its caption, its text alternative and a table of its values.

Figures are plain dicts with Plotly's attribute names (`line_color` stands for `line.color`), so that this module does
not need Plotly.
"""

import math
from collections.abc import Iterable, Sequence
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


def with_spread(
    values: Iterable[SupportsFloat | None], spreads: Iterable[SupportsFloat | None], digits: int = 3
) -> list[str]:
    """Return each value as text, with its spread in brackets."""
    return [f"{number(v, digits)} ({number(s, digits)})" for v, s in zip(values, spreads, strict=True)]


def curve(
    x: Sequence[SupportsFloat], y: Sequence[SupportsFloat | None], name: str, colour: str, **options: Any
) -> dict[str, Any]:
    """Return the trace of a line whose hover label shows its name and value."""
    hover = f"{name}: %{{y:.3~f}}<extra></extra>"
    trace = dict(type="scatter", mode="lines", x=list(x), y=list(y), name=name, hovertemplate=hover)
    return trace | dict(line_color=colour, line_width=2) | options


def axis(title: str, **options: Any) -> dict[str, Any]:
    """Return an axis that makes room for its labels."""
    return dict(title_text=title, automargin=True, **options)


def layout(height: int, **options: Any) -> dict[str, Any]:
    """Return the layout of figures that are not zoomed: dragging is off, so that a touch scrolls the page."""
    own = dict(height=height, dragmode=False, font_family="system-ui, sans-serif", font_size=13)
    return SHARED_LAYOUT | own | dict(margin_l=10, margin_r=20, margin_t=35, margin_b=10) | options
