"""Plotly figures of series of values, as plain dicts that do not need Plotly, each with a table of the same values.

n is the number of records, K the number of steps.
"""

import base64
import math
from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple, SupportsFloat

import numpy as np

from cpc.data.store.atomic import finite
from cpc.monitor.view import View
from cpc.pages.palette import BLUE, GREY
from cpc.pages.report import Table

MAX_POINTS_PER_SERIES = 1500
MIN_POINTS_PER_SERIES = 120
MANY = 16  # with more series, legends, bands and long tables are left out
NUM_TABLE_STEPS = 6
MAX_COLUMNS = 240  # largest number of columns in a heat map
_BAND_ALPHA = "26"  # 15 % opaque
# The buttons are listed because Plotly's default buttons include a button that uploads the chart.
GRAPH_CONFIG: dict[str, Any] = {"modeBarButtons": [["toImage"], ["zoom2d", "pan2d", "resetScale2d"]]}
GRAPH_CONFIG |= {"responsive": True, "displaylogo": False, "showSendToCloud": False}
_TRANSPARENT = "rgba(0,0,0,0)"  # a page is light or dark


class Chart(NamedTuple):
    """A figure with its title, its caption, a text alternative for screen readers, and its values."""

    title: str
    caption: str
    alt: str
    traces: list[dict[str, Any]]
    layout: dict[str, Any]
    table: Table
    name: str = ""  # the chart's section on the page

    @property
    def figure(self) -> dict[str, Any]:
        """Plotly's figure."""
        return {"data": self.traces, "layout": self.layout}

    @property
    def is_empty(self) -> bool:
        """Whether there are no records for the chart. A chart that is zoomed between two records is not empty."""
        return not self.table.rows


class Series(NamedTuple):
    """One line of a chart: training steps `[n]` and values `[n]`."""

    name: str
    steps: np.ndarray
    values: np.ndarray
    colour: str  # `#rrggbb`
    dash: str = "solid"
    error: np.ndarray | None = None  # `[n]`, half the width of the band around the line
    is_reference: bool = False  # a ceiling or chance: thin, never smoothed

    def select(self, points: np.ndarray) -> "Series":
        """Return the series with only the given points (a mask or indices)."""
        error = None if self.error is None else self.error[points]
        return self._replace(steps=self.steps[points], values=self.values[points], error=error)


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
    """Plot series over the training step.

    With `may_be_log`, `view.log` applies, because all values are positive. With `from_zero`, a linear axis begins at
    zero.
    """
    max_points = min(max(view.max_points // max(1, len(series)), MIN_POINTS_PER_SERIES), MAX_POINTS_PER_SERIES)
    series = [each for each in series if len(each.steps)]
    shown = [_crop(each, view) for each in series]
    few_points = [each.select(extreme_indices(each.values, max_points)) for each in shown]
    # Smoothed lines have no bands, because a smoothed value has another standard error than a single record.
    has_bands = len(shown) <= MANY and view.smoothing == 1
    bands = [_band(each) for each in few_points if has_bands and each.error is not None]
    lines = [_line(each, 1.2 if each.is_reference or len(shown) > MANY else 2.0) for each in few_points]
    is_log = "y" in view.log and may_be_log
    axes = {"yaxis": axis(y_title, view, is_log=is_log, revision=view.unit)}
    axes["yaxis"]["rangemode"] = "tozero" if from_zero else "normal"
    ends = "; ".join(f"{each.name}: {format_number(each.values[-1])}" for each in series[:MANY])
    alt, table = f"{title}. At the end: {ends}.", _table(series, shown, view)
    return Chart(title, caption, alt, bands + lines, layout(view, len(shown)) | axes, table, name)


def heat_map(title: str, caption: str, lines: Chart, steps: np.ndarray, values: np.ndarray, view: View) -> Chart:
    """Plot values `[n, K]` over the training steps `[n]`, one row per line of another chart, whose table it shares.

    More than `MAX_COLUMNS` records are averaged with their neighbours. Colours run from zero to the highest value.
    """
    inside = _view_mask(steps, view)
    width = -(-int(inside.sum()) // MAX_COLUMNS) or 1
    thinned = slice(width // 2, None, width)
    steps, values = steps[inside][thinned], moving_mean(values[inside], width | 1)[thinned]
    unit = lines.layout["yaxis"]["title"]["text"]
    cells = {
        "type": "heatmap",
        "x": encode_array(steps),
        "y": [row[0] for row in lines.table.rows][: values.shape[1]],
        "z": finite(values.T.astype(float).round(4).tolist()),
        "zmin": 0.0,
        "zmax": max(0.1, float(np.nanmax(values, initial=0.0))),
        "colorscale": "Viridis",
        "colorbar": {"title": {"text": unit, "side": "right"}, "thickness": 12, "outlinewidth": 0},
        "hovertemplate": f"step %{{x}}, %{{y}}: %{{z:.3f}} {escape(view.unit)}<extra></extra>",
        "hoverongaps": False,
    }
    axes = {"yaxis": axis("", view) | {"type": "category", "ticklabelstandoff": 4}}
    traces, alt = [cells] * bool(len(steps)), lines.alt.replace(lines.title, title)
    return Chart(title, caption, alt, traces, layout(view, 1) | axes, lines.table, "heat")


def layout(view: View, num_series: int) -> dict[str, Any]:
    """Return the layout that all figures share: a transparent background, and `uirevision` to keep the user's zoom.

    Text and lines are grey in files of images; the page gives them the colours of its theme (assets/monitor.css).
    """
    x_axis = axis("training step", view, is_log="x" in view.log) | {"showspikes": True}
    x_axis |= {"spikemode": "across", "spikethickness": 1, "spikedash": "dot", "spikecolor": GREY}
    if view.x_range is not None:
        low, high = view.x_range
        bounds = [math.log10(max(low, 1e-9)), math.log10(max(high, 1e-9))] if "x" in view.log else [low, high]
        x_axis |= {"range": bounds, "autorange": False}
    return {
        "template": "none",
        "paper_bgcolor": _TRANSPARENT,
        "plot_bgcolor": _TRANSPARENT,
        "modebar": {"bgcolor": _TRANSPARENT, "color": GREY, "activecolor": BLUE},
        "legend": {"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0},
        "autosize": True,
        "uirevision": "kept",
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": GREY},
        "margin": {"l": 10, "r": 16, "t": 30, "b": 10},
        "hovermode": "closest",
        "dragmode": "zoom",
        "showlegend": 1 < num_series <= MANY,
        "xaxis": x_axis,
    }


def axis(title: str, view: View, *, is_log: bool = False, revision: str = "") -> dict[str, Any]:
    """Return an axis; the user's zoom is kept as long as `revision`, the scale and `view.num_resets` stay the same."""
    colours = dict.fromkeys(("gridcolor", "zerolinecolor", "linecolor"), f"{GREY}55")
    kind = {"type": "log" if is_log else "linear", "uirevision": f"{revision} {is_log} {view.num_resets}"}
    return {"title": {"text": title}, "automargin": True} | colours | kind


def scatter_trace(name: str, x_text: str) -> dict[str, Any]:
    """Return a scatter trace with its name and hover label; `x_text` is the part of the label about x."""
    label = escape(name)
    hover = f"{label}<br>{x_text}: %{{y:.4~g}}<extra></extra>"
    return {"type": "scatter", "name": label, "legendgroup": label, "hovertemplate": hover}


def encode_array(values: np.ndarray) -> dict[str, str]:
    """Return an array as base64 of little-endian bytes, which Plotly's JavaScript reads fastest; NaN shows as a gap."""
    dtype = "f8" if values.dtype == np.float64 else "f4"
    return {"dtype": dtype, "bdata": base64.b64encode(values.astype(f"<{dtype}").tobytes()).decode()}


def format_number(value: SupportsFloat) -> str:
    """Return a value as text.

    >>> format_number(1.23456), format_number(1234567.0), format_number(float("nan"))
    ('1.235', '1.235e+06', 'n/a')
    """
    return f"{float(value):.4g}" if math.isfinite(value) else "n/a"


def _view_mask(steps: np.ndarray, view: View) -> np.ndarray:
    """Return a mask of the records to show: all in the range, and both ends of lines that enter or cross the range."""
    inside = np.ones(len(steps), bool)
    if view.x_range is not None:
        low, high = view.x_range
        inside = (steps >= low) & (steps <= high)
        enters = (np.maximum(steps[1:], steps[:-1]) >= low) & (np.minimum(steps[1:], steps[:-1]) <= high)
        inside = inside | np.append(enters, False) | np.append(False, enters)
    return inside & (steps > 0) if "x" in view.log else inside


def _crop(series: Series, view: View) -> Series:
    values = series.values if series.is_reference else moving_mean(series.values, view.smoothing)
    return series._replace(values=values).select(_view_mask(series.steps, view))


def _line(series: Series, width: float) -> dict[str, Any]:
    return scatter_trace(series.name, "step %{x}") | {
        "mode": "lines" if len(series.steps) > 1 else "markers",
        "x": encode_array(series.steps),
        "y": encode_array(series.values),
        "line": {"color": series.colour, "width": width, "dash": series.dash},
        "marker": {"color": series.colour},
    }


def _band(series: Series) -> dict[str, Any]:
    assert series.error is not None
    known = series.select(np.isfinite(series.values) & np.isfinite(series.error))
    x, y, e = known.steps, known.values, known.error
    return scatter_trace(series.name, "") | {
        "name": f"{escape(series.name)}, standard error",
        "mode": "lines",
        "x": encode_array(np.concatenate([x, x[::-1]])),
        "y": encode_array(np.concatenate([y + e, (y - e)[::-1]])),
        "fill": "toself",
        "fillcolor": series.colour + _BAND_ALPHA,
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _table(series: Sequence[Series], shown: Sequence[Series], view: View) -> Table:
    """Return a table with one row per series.

    A row has the last record, the extremes of the shown values and, with few series, the values at some steps.
    """
    ends = [each.steps[i] for each in shown if len(each.steps) for i in (0, -1)]
    is_long = not ends or len(shown) > MANY
    table_steps = np.array([]) if is_long else np.unique(np.linspace(min(ends), max(ends), NUM_TABLE_STEPS).round())
    how = "in view, smoothed" if view.smoothing > 1 else "in view"
    header = ["curve", "last step", "last", f"lowest ({how})", f"highest ({how})"]
    rows = []
    for whole, cropped in zip(series, shown, strict=True):
        known = cropped.values[np.isfinite(cropped.values)]
        values = [whole.values[-1], *((known.min(), known.max()) if len(known) else (math.nan, math.nan))]
        indices = np.searchsorted(cropped.steps, table_steps, side="right") - 1  # the last record up to each step
        values += [cropped.values[i] if i >= 0 else math.nan for i in indices]
        rows.append([cropped.name, f"{whole.steps[-1]:.0f}", *map(format_number, values)])
    return Table([*header, *(f"step {step:.0f}" for step in table_steps)], rows)


def extreme_indices(values: np.ndarray, max_points: int) -> np.ndarray:
    """Return sorted indices of values `[n]`: the first, the last, and per bucket the lowest, highest, first NaN.

    Buckets have equal numbers of points. If `max_points` is about four times the width in pixels, a bucket is narrower
    than a pixel. Unlike averages, extremes keep spikes and the gaps where a value is not finite.
    """
    assert max_points >= 3, "a bucket keeps up to three points"
    num = len(values)
    if num <= max_points:
        return np.arange(num)
    width = -(-num // (max_points // 3))
    padding = np.full(-num % width, values[-1], values.dtype)
    padded = np.concatenate([values, padding]).reshape(-1, width)
    starts = np.arange(len(padded)) * width
    is_gap = ~np.isfinite(padded)
    has_value, has_gap = ~is_gap.all(1), is_gap.any(1)
    lowest = starts + np.where(is_gap, np.inf, padded).argmin(1)
    highest = starts + np.where(is_gap, -np.inf, padded).argmax(1)
    gaps = starts + is_gap.argmax(1)
    # argmin and argmax return the first of equal values, so never an index in the padding (copies of the last value).
    return np.unique(np.concatenate([lowest[has_value], highest[has_value], gaps[has_gap], [0, num - 1]]))


def moving_mean(values: np.ndarray, width: int) -> np.ndarray:
    """Return, for values `[n]` or `[n, K]`, the mean of `width` records around each record; fewer at the ends.

    A NaN stays NaN, and the means of its neighbours leave it out.
    """
    assert width % 2 == 1, "the width must be odd"
    if width == 1 or not len(values):
        return values
    from scipy.ndimage import uniform_filter1d  # not above: a page without smoothed curves needs no scipy

    is_finite = np.isfinite(values)
    filled = np.where(is_finite, values, 0).astype(np.float64)
    sums, counts = (uniform_filter1d(each, width, 0, mode="constant") for each in (filled, is_finite.astype(float)))
    return np.divide(sums, counts, out=np.full(values.shape, np.nan), where=is_finite).astype(values.dtype)
