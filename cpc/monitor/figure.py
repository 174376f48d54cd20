"""Series of values as a Plotly figure, a plain dict that needs no Plotly, with the same values in a table.

n records, K steps.
"""

import base64
import math
from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple, SupportsFloat

import numpy as np

from cpc.monitor.downsample import extreme_indices, moving_mean
from cpc.monitor.view import RUN_COLOURS, View

STEP_COLOURS = ("#2079b8", "#a868b8", "#d55e00")  # from the first step to the last
GREY = "#858b94"
INK = {"light": ("#1d2129", "#d5d9df"), "dark": ("#e6e8ec", "#3a414c"), "page": ("#858b94", "#858b9455")}
MAX_POINTS_OF_SERIES = 1500
MIN_POINTS_OF_SERIES = 120
MANY = 16  # series from which on legends, bands and long tables hide more than they show
NUM_TABLE_STEPS = 6
MAX_COLUMNS = 240  # of a heat map
_FADED = "26"  # 15 % opaque
# Plotly's own choice of buttons includes one that uploads the chart.
GRAPH_CONFIG = {
    "responsive": True,
    "displaylogo": False,
    "modeBarButtons": [["toImage"], ["zoom2d", "pan2d", "resetScale2d"]],
    "showSendToCloud": False,
    "doubleClick": "reset+autosize",
}


class Series(NamedTuple):
    """One line of a chart: steps of training `[n]`, values `[n]`."""

    name: str
    steps: np.ndarray
    values: np.ndarray
    colour: str  # `#rrggbb`
    dash: str = "solid"
    error: np.ndarray | None = None  # `[n]`, half the width of a band around it
    is_reference: bool = False  # a ceiling or chance: thin, never smoothed

    def at(self, kept: np.ndarray) -> "Series":
        """Some of its points."""
        error = None if self.error is None else self.error[kept]
        return self._replace(steps=self.steps[kept], values=self.values[kept], error=error)


class Chart(NamedTuple):
    """A figure with its words and the table of its values."""

    name: str  # its place on the page
    title: str
    caption: str  # what is drawn, and how to read it
    alt: str  # the figure in words
    figure: dict[str, Any]  # `data` and `layout`, as Plotly names them
    header: list[str]
    rows: list[list[str]]  # the first cell names the row

    @property
    def is_empty(self) -> bool:
        """Whether there are no such records; a view between two of them is not empty."""
        return not self.rows


def line_chart(
    name: str,
    title: str,
    caption: str,
    y_title: str,
    series: Sequence[Series],
    view: View,
    *,
    may_be_log: bool = False,
    from_zero: bool = False,
) -> Chart:
    """Draw series over the training step.

    `may_be_log`: `view.log_y` applies, for the values are positive. `from_zero`: a linear axis begins at zero.
    """
    max_points = min(max(view.max_points // max(1, len(series)), MIN_POINTS_OF_SERIES), MAX_POINTS_OF_SERIES)
    series = [each for each in series if len(each.steps)]
    shown = [_in_view(each, view) for each in series]
    few_points = [each.at(extreme_indices(each.values, max_points)) for each in shown]
    # The mean of neighbours has another error than they have.
    has_bands = len(shown) <= MANY and view.smoothing == 1
    bands = [_band(each) for each in few_points if has_bands and each.error is not None]
    lines = [_line(each, 1.2 if each.is_reference or len(shown) > MANY else 2.0) for each in few_points]
    is_log = view.log_y and may_be_log
    axes = {"yaxis": axis(y_title, view, is_log=is_log, revision=f"{view.unit} {is_log}")}
    axes["yaxis"]["rangemode"] = "tozero" if from_zero else "normal"
    figure = {"data": bands + lines, "layout": layout(view, len(shown)) | axes}
    header, rows = _table(series, shown, view)
    ends = "; ".join(f"{each.name}: {number(each.values[-1])}" for each in series[:MANY])
    return Chart(name, title, caption, f"{title}. At the end: {ends}.", figure, header, rows)


def heat_map(
    name: str,
    title: str,
    caption: str,
    steps: np.ndarray,
    values: np.ndarray,
    labels: Sequence[str],
    value_title: str,
    view: View,
) -> Chart:
    """Draw values `[n, K]` over the steps `[n]`, a row per label; of many records, means of neighbours.

    Colours run from zero to the highest value.
    """
    last = [(f"step {steps[-1]:.0f} (last)", values[-1])] if len(steps) else []
    inside = _is_in_view(steps, view)
    width = -(-int(inside.sum()) // MAX_COLUMNS) or 1
    thinned = slice(width // 2, None, width)
    steps, values = steps[inside][thinned], moving_mean(values[inside], width | 1)[thinned]
    cells = {
        "type": "heatmap",
        "x": encode_array(steps),
        "y": list(labels),
        "z": [[None if not math.isfinite(v) else round(v, 4) for v in row] for row in values.T.tolist()],
        "zmin": 0.0,
        "zmax": max(0.1, float(np.nanmax(values, initial=0.0))),
        "colorscale": "Viridis",
        "colorbar": {"title": {"text": value_title, "side": "right"}, "thickness": 12, "outlinewidth": 0},
        "hovertemplate": f"step %{{x}}, %{{y}}: %{{z:.3f}} {escape(view.unit)}<extra></extra>",
        "hoverongaps": False,
    }
    axes = {"yaxis": axis("", view, is_log=False, revision="heat") | {"type": "category", "ticklabelstandoff": 4}}
    figure = {"data": [cells] if len(steps) else [], "layout": layout(view, 1) | axes}
    num_chosen = min(NUM_TABLE_STEPS, len(steps))
    chosen = np.unique(np.linspace(0, len(steps) - 1, num_chosen).round().astype(int))
    columns = [(f"step {steps[i]:.0f}", values[i]) for i in chosen] + last
    header = ["step k", *(words for words, _ in columns)]
    rows = [[label, *(number(column[k]) for _, column in columns)] for k, label in enumerate(labels)] if last else []
    ends = "; ".join(f"{row[0]}: {row[-1]}" for row in rows)
    return Chart(name, title, caption, f"{title}. At the end: {ends}.", figure, header, rows)


def layout(view: View, num_series: int) -> dict[str, Any]:
    """What all figures share. Without background, the page's own shows; `uirevision` keeps the reader's zoom."""
    ink, _ = INK[view.theme]
    transparent = "rgba(0,0,0,0)"
    x_axis = axis("training step", view, is_log=view.log_x, revision=f"{view.log_x}") | {"showspikes": True}
    x_axis |= {"spikemode": "across", "spikethickness": 1, "spikedash": "dot", "spikecolor": GREY}
    if view.x_range is not None:
        low, high = view.x_range
        bounds = [math.log10(max(low, 1e-9)), math.log10(max(high, 1e-9))] if view.log_x else [low, high]
        x_axis |= {"range": bounds, "autorange": False}
    return {
        "template": "none",
        "autosize": True,
        "uirevision": "kept",
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": ink},
        "paper_bgcolor": transparent,
        "plot_bgcolor": transparent,
        "modebar": {"bgcolor": transparent, "color": GREY, "activecolor": RUN_COLOURS[0]},
        "margin": {"l": 10, "r": 16, "t": 30, "b": 10},
        "hovermode": "closest",
        "dragmode": "zoom",
        "showlegend": 1 < num_series <= MANY,
        "legend": {"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0},
        "xaxis": x_axis,
    }


def axis(title: str, view: View, *, is_log: bool, revision: str) -> dict[str, Any]:
    """An axis in the theme's colours; a zoom is kept as long as `revision` stays the same."""
    _, line = INK[view.theme]
    found = {"title": {"text": title}, "automargin": True, "gridcolor": line, "zerolinecolor": line, "linecolor": line}
    return found | {"type": "log" if is_log else "linear", "uirevision": revision}


def named(name: str, place: str) -> dict[str, Any]:
    """A scatter trace's name in legend and hover label, where `place` says what x is."""
    label = escape(name)
    hover = f"{label}<br>{place}: %{{y:.4~g}}<extra></extra>"
    return {"type": "scatter", "name": label, "legendgroup": label, "hovertemplate": hover}


def encode_array(values: np.ndarray) -> dict[str, str]:
    """An array as Plotly's JavaScript reads it fastest: raw little-endian bytes; NaN draws a gap."""
    kind = "f8" if values.dtype == np.float64 else "f4"
    return {"dtype": kind, "bdata": base64.b64encode(values.astype(f"<{kind}").tobytes()).decode()}


def number(value: SupportsFloat) -> str:
    """A value in words.

    >>> number(1.23456), number(1234567.0), number(float("nan"))
    ('1.235', '1.235e+06', 'n/a')
    """
    return f"{float(value):.4g}" if math.isfinite(value) else "n/a"


def step_colours(num_steps: int) -> list[str]:
    """Colours from the first step to the last, linear in between."""
    ends = np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in STEP_COLOURS])
    at = np.linspace(0, len(ends) - 1, num_steps)
    channels = np.stack([np.interp(at, range(len(ends)), channel) for channel in ends.T], axis=1)
    return ["#{:02x}{:02x}{:02x}".format(*colour) for colour in channels.round().astype(int)]


def _is_in_view(steps: np.ndarray, view: View) -> np.ndarray:
    """Which records are shown: those in the range, and both ends of every line that enters it, or crosses it."""
    inside = np.ones(len(steps), bool)
    if view.x_range is not None:
        low, high = view.x_range
        inside = (steps >= low) & (steps <= high)
        enters = (np.maximum(steps[1:], steps[:-1]) >= low) & (np.minimum(steps[1:], steps[:-1]) <= high)
        inside = inside | np.append(enters, False) | np.append(False, enters)
    return inside & (steps > 0) if view.log_x else inside


def _in_view(series: Series, view: View) -> Series:
    values = series.values if series.is_reference else moving_mean(series.values, view.smoothing)
    if view.x_range is None and not view.log_x:  # all of it, without a copy
        return series._replace(values=values)
    return series._replace(values=values).at(_is_in_view(series.steps, view))


def _line(series: Series, width: float) -> dict[str, Any]:
    return named(series.name, "step %{x}") | {
        "mode": "lines" if len(series.steps) > 1 else "markers",
        "x": encode_array(series.steps),
        "y": encode_array(series.values),
        "line": {"color": series.colour, "width": width, "dash": series.dash},
        "marker": {"color": series.colour},
    }


@np.errstate(over="ignore")  # beyond float32 a band ends
def _band(series: Series) -> dict[str, Any]:
    assert series.error is not None
    known = series.at(np.isfinite(series.values) & np.isfinite(series.error))
    x, y, e = known.steps, known.values, known.error
    return named(series.name, "") | {
        "name": f"{escape(series.name)}, standard error",
        "mode": "lines",
        "x": encode_array(np.concatenate([x, x[::-1]])),
        "y": encode_array(np.concatenate([y + e, (y - e)[::-1]])),
        "fill": "toself",
        "fillcolor": series.colour + _FADED,
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _table(series: Sequence[Series], shown: Sequence[Series], view: View) -> tuple[list[str], list[list[str]]]:
    """A row per series: its last record, and of what is drawn extremes and, where there are few series, some values."""
    if not series:
        return [], []
    ends = [each.steps[i] for each in shown if len(each.steps) for i in (0, -1)]
    is_long = not ends or len(shown) > MANY
    at = np.array([]) if is_long else np.unique(np.linspace(min(ends), max(ends), NUM_TABLE_STEPS).round())
    smoothed = ["smoothed"] * (view.smoothing > 1)
    how = ", ".join(["in view"] * (view.x_range is not None) + smoothed)
    header = ["curve", "last step", "last", *(f"{word} ({how})" if how else word for word in ("lowest", "highest"))]
    header += [f"step {step:.0f}{' (smoothed)' if smoothed else ''}" for step in at]
    rows = []
    for whole, each in zip(series, shown, strict=True):
        finite = each.values[np.isfinite(each.values)]
        found = [whole.values[-1], *((finite.min(), finite.max()) if len(finite) else (math.nan, math.nan))]
        before = np.searchsorted(each.steps, at, side="right") - 1  # the last record up to each step
        found += [each.values[i] if i >= 0 else math.nan for i in before]
        rows.append([each.name, f"{whole.steps[-1]:.0f}", *map(number, found)])
    return header, rows
