"""The quickstart's charts: each a figure, its words, and the table of its values.

Figures are plain dicts in Plotly's words (`line_color` for `line.color`), so that nothing here needs the library. K
steps (of grids: of all directions), n points.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple, SupportsFloat

import numpy as np

from cpc.bounds.bound import FULL_SOFTMAX, steps_of

# Hues of Okabe and Ito's colour-blind-safe palette, at luminances that stand out from white and from near-black alike.
BLUE, VERMILION, GREEN, PURPLE = "#2079b8", "#d55e00", "#00906a", "#bf6597"
ORANGE, SKY, GREY = "#c08500", "#56b4e9", "#858b94"
STEP_COLOURS = (BLUE, "#a868b8", VERMILION)  # from k = 1 to k = K
DIRECTION_SYMBOLS = {"down": "triangle-down", "up": "triangle-up", "right": "triangle-right", "left": "triangle-left"}
STRATEGY_MARKS = ((BLUE, "circle"), (VERMILION, "diamond"), (GREEN, "square"), (PURPLE, "cross"), (ORANGE, "star"))


class Reading(NamedTuple):
    """What a bound reads, what it never exceeds, and what tells its curves apart."""

    name: str = "log N - L"
    ceiling: str = "log N"
    kind: str = "negatives"


class Table(NamedTuple):
    """Values in words; the first column names the rows."""

    header: list[str]
    rows: list[list[str]]


class Chart(NamedTuple):
    """A figure with its title, its words for those who see it and for those who do not, and its values."""

    title: str
    caption: str
    alt: str
    traces: list[dict[str, Any]]
    layout: dict[str, Any]
    table: Table


def number(value: SupportsFloat | None, digits: int = 3) -> str:
    """A value in words.

    >>> number(1.23456), number(None), number(float("nan"))
    ('1.235', 'n/a', 'n/a')
    """
    return "n/a" if value is None or not math.isfinite(value) else f"{float(value):.{digits}f}"


def probe_chart(
    report: dict[str, Any],
    tasks: Mapping[str, str],
    representations: Mapping[str, str],
    caption: str,
) -> Chart:
    """Accuracy of the probes by representation, with 95 % intervals where the report has them.

    Args:
        report: percent by representation for each task; intervals under `TASK_interval`; under `TASK_num_steps` the
            steps of networks trained for the labels, which depend on the machine.
        tasks: colours of the bars.
        representations: the report's keys in words, from top to bottom.
        caption: on what the probes were tested.
    """
    names, traces, columns = list(representations.values()), [], []
    for task, colour in tasks.items():
        values = [report[task].get(key) for key in representations]
        intervals = [(report.get(f"{task}_interval") or {}).get(key) for key in representations]
        pairs = list(zip(values, intervals, strict=True))
        words = [number(v, 1) + (f" [{number(i[0], 1)}, {number(i[1], 1)}]" if i else "") for v, i in pairs]
        num_steps = report.get(f"{task}_num_steps", {})
        words = [
            w + (f", {num_steps[k]} steps" if k in num_steps else "")
            for w, k in zip(words, representations, strict=True)
        ]
        bar = dict(type="bar", orientation="h", name=task, x=values, y=names, customdata=words, marker_color=colour)
        arms = [(i[1] - v, v - i[0]) if i and v is not None else (None, None) for v, i in pairs]
        error = dict(array=[above for above, _ in arms], arrayminus=[below for _, below in arms], width=0)
        traces.append(dict(bar, error_x=error, hovertemplate=f"%{{y}}, {task} (%): %{{customdata}}<extra></extra>"))
        columns.append(words)
    rows = [list(row) for row in zip(names, *columns, strict=True)]
    return Chart(
        title="What a linear probe reads from the features",
        caption=f"{caption} Whiskers and brackets: 95 % intervals.",
        alt="Bar chart of probe accuracy in percent. "
        + "; ".join(
            f"{name}: " + ", ".join(f"{task} {words}" for task, words in zip(tasks, values, strict=True))
            for name, *values in rows
        ),
        traces=traces,
        layout=layout(
            440,
            xaxis=axis("accuracy of a linear probe (%)", rangemode="tozero"),
            yaxis=axis("", autorange="reversed", ticklabelstandoff=6),
            bargap=0.25,
        ),
        table=Table(["representation", *(f"{task} (%)" for task in tasks)], rows),
    )


def training_chart(records: list[dict[str, Any]]) -> Chart:
    """The bound of every step k over training, with one strategy; records in the order of training."""
    at = [record["step"] for record in records]
    last, strategy, words = records[-1], records[-1]["strategy"], records[-1]["reading"]
    reading = _reading_of(last)
    predictions = steps_of(last)
    names = [prediction.words for prediction in predictions]
    traces, labels = [], []
    for index, (prediction, colour) in enumerate(zip(predictions, _step_colours(len(predictions)), strict=True)):
        bounds = [record["mi_bound_nats"][index] for record in records]
        errors = [number(record["standard_error_nats"][index]) for record in records]
        line = curve(at, bounds, prediction.name, colour, mode="lines+markers", marker_size=4, customdata=errors)
        hover = f"{prediction.words}, step %{{x}}: %{{y:.3f}} nats, standard error %{{customdata}}<extra></extra>"
        traces.append(dict(line, hovertemplate=hover))
        if index in (0, len(predictions) - 1):
            labels.append(_label(at[-1], bounds[-1], prediction.words, xshift=6))
    ceilings = {number(ceiling, 2): k for k, ceiling in enumerate(last["mi_ceiling_nats"])}  # most steps share one
    for height, k in ceilings.items():
        heights = [record["mi_ceiling_nats"][k] for record in records]
        traces.append(curve(at, heights, f"ceiling {reading.ceiling}", GREY, line_dash="dash", showlegend=False))
        labels.append(_label(at[0], heights[-1], f"ceiling {reading.ceiling} = {height}", yanchor="top"))
    ends = ", ".join(f"{name}: {number(bound, 2)}" for name, bound in zip(names, last["mi_bound_nats"], strict=True))
    return Chart(
        title=f"{reading.name} over training, {reading.kind}: {strategy}",
        caption=f"Split {last['split']}. With {reading.kind} {strategy} {reading.name} is: {words}. One line per "
        f"prediction step k; dashed, the ceiling {reading.ceiling}. In the table: standard errors in brackets.",
        alt=f"Line chart of {reading.name} in nats ({words}) from training step {at[0]} to {at[-1]}. At the "
        f"end {ends}; ceiling {reading.ceiling}: {', '.join(ceilings)}.",
        traces=traces,
        layout=layout(
            500,
            xaxis=axis("training step"),
            yaxis=axis(f"{reading.name} (nats)", rangemode="tozero"),
            annotations=_drawable(labels),
            legend_title_text="step k ",
            margin_r=15 + 6 * max(map(len, names)),
        ),
        table=Table(
            ["training step", *names, f"ceiling {reading.ceiling}"],
            [
                [
                    f"{record['step']}",
                    *with_spread(record["mi_bound_nats"], record["standard_error_nats"]),
                    ", ".join(dict.fromkeys(number(ceiling) for ceiling in record["mi_ceiling_nats"])),
                ]
                for record in records
            ],
        ),
    )


def step_chart(records: list[dict[str, Any]]) -> Chart:
    """Bound and accuracy at the end of training by prediction step k; one record per strategy."""
    traces, labels, rows = [], [], []
    predictions, reading = steps_of(records[0]), _reading_of(records[0])
    directions = list(dict.fromkeys(prediction.direction for prediction in predictions))
    num_series, first = len(records) * len(directions), predictions[0].k
    for index, (record, (colour, symbol)) in enumerate(zip(records, STRATEGY_MARKS, strict=False)):
        strategy, bounds, ceilings = record["strategy"], record["mi_bound_nats"], record["mi_ceiling_nats"]
        errors, shown = record["standard_error_nats"], escape(strategy)
        accuracies = [None if accuracy is None else 100 * accuracy for accuracy in record["accuracy"]]
        chances = [100 / n if n else None for n in record["num_candidates"]]
        bound_words = with_spread(bounds, errors)
        for order, direction in enumerate(directions):
            columns = [column for column, prediction in enumerate(predictions) if prediction.direction == direction]
            steps = [predictions[column].k for column in columns]
            place = index * len(directions) + order - (num_series - 1) / 2
            beside = [k + 0.2 * min(1, 3 / num_series) * place for k in steps]  # strategies often read nearly the same
            points: dict[str, Any] = dict(type="scatter", mode="markers", x=beside, customdata=steps)
            points |= dict(legendgroup=strategy, marker_color=colour, marker_size=8)
            points |= dict(marker_symbol=symbol if len(directions) == 1 else DIRECTION_SYMBOLS[direction])
            dashes = dict(line_dash="dash", legendgroup=strategy, showlegend=False)
            of = f"{shown}, {direction}" if direction else shown
            bound_hover = f"k = %{{customdata}}, {of}: %{{text}} nats (standard error)<extra></extra>"
            accuracy_hover = f"k = %{{customdata}}, {of}: %{{y:.1f}} %<extra></extra>"
            words, error = _at(columns, bound_words), dict(array=_at(columns, errors), color=colour)
            bound_points = dict(points, y=_at(columns, bounds), text=words, error_y=error, hovertemplate=bound_hover)
            rates = _at(columns, accuracies)
            traces += [
                dict(bound_points, name=f"{of}:<br>{escape(record['reading'])}"),
                curve(steps, _at(columns, ceilings), f"ceiling {reading.ceiling}", colour, **dashes),
                dict(points, name=of, y=rates, yaxis="y2", showlegend=False, hovertemplate=accuracy_hover),
                curve(steps, _at(columns, chances), "chance 1/N", colour, yaxis="y2", **dashes),
            ]
        # The dashes of all strategies lie close together: the last one's carry the words.
        labels = [_label(first, ceilings[0], f"ceiling {reading.ceiling}", yanchor="top")]
        labels += [_label(first, chances[0], "chance 1/N", yanchor="bottom", yref="y2")]
        cells = [bound_words, map(number, ceilings)]
        cells += [[number(value, 2) for value in values] for values in (record["num_candidates"], accuracies, chances)]
        names = [f"{strategy}, {prediction.words}" for prediction in predictions]
        rows += [list(row) for row in zip(names, *cells, strict=True)]
    header = [f"{reading.kind}, step", f"{reading.name} (nats)", f"{reading.ceiling} (nats)", "N"]
    header += ["accuracy (%)", "chance (%)"]
    ahead = "rows of patches ahead" if directions[0] else "latents ahead"
    return Chart(
        title=f"{reading.name} and accuracy by prediction step, after training",
        caption=f"Split {records[0]['split']}, training step {records[0]['step']}. Whiskers: one standard error "
        f"of {reading.name}. Dashed: above, the ceiling {reading.ceiling}; below, the accuracy of chance, 1/N.",
        alt=f"Two charts over the prediction step k: {reading.name} in nats with its ceiling, accuracy with that of "
        "chance. "
        + "".join(f"{record['strategy']}: {record['reading']}. " for record in records)
        + "; ".join(f"{name}: {bound} nats, {accuracy} %" for name, bound, _, _, accuracy, _ in rows),
        traces=traces,
        layout=layout(
            600,
            xaxis=axis(f"prediction step k ({ahead})", dtick=1, anchor="y2"),
            yaxis=axis(f"{reading.name} (nats)", rangemode="tozero", domain=[0.54, 1]),
            yaxis2=axis("accuracy (%)", rangemode="tozero", domain=[0, 0.46]),
            annotations=_drawable(labels),
        ),
        table=Table(header, rows),
    )


def _reading_of(record: dict[str, Any]) -> Reading:
    """Classes are not equally frequent: their entropy H takes the place of log N."""
    return Reading("H - L", "H", "objective") if record["strategy"] == FULL_SOFTMAX else Reading()


def _at(columns: list[int], values: list[Any]) -> list[Any]:
    return [values[column] for column in columns]


def with_spread(
    values: Iterable[SupportsFloat | None], spreads: Iterable[SupportsFloat | None], digits: int = 3
) -> list[str]:
    """Values in words, spreads in brackets."""
    return [f"{number(v, digits)} ({number(s, digits)})" for v, s in zip(values, spreads, strict=True)]


def _step_colours(num_steps: int) -> list[str]:
    """Colours from k = 1 to k = K, linear in between."""
    ends = np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in STEP_COLOURS])
    at = np.linspace(0, len(ends) - 1, num_steps)
    channels = np.stack([np.interp(at, range(len(ends)), channel) for channel in ends.T], axis=1)
    return ["#{:02x}{:02x}{:02x}".format(*colour) for colour in channels.round().astype(int)]


def curve(
    x: Sequence[SupportsFloat], y: Sequence[SupportsFloat | None], name: str, colour: str, **options: Any
) -> dict[str, Any]:
    """A line that shows its name and value."""
    hover = f"{name}: %{{y:.3~f}}<extra></extra>"
    drawn = dict(
        type="scatter",
        mode="lines",
        x=list(x),
        y=list(y),
        name=name,
        line_color=colour,
        line_width=2,
        hovertemplate=hover,
    )
    return drawn | options


def _label(x: int, y: SupportsFloat | None, text: str, **options: Any) -> dict[str, Any]:
    return dict(x=x, y=y, text=text, xanchor="left", showarrow=False, **options)


def _drawable(labels: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [label for label in labels if number(label["y"]) != "n/a"]


def axis(title: str, **options: Any) -> dict[str, Any]:
    """An axis with room for its labels."""
    return dict(title_text=title, automargin=True, **options)


def layout(height: int, **options: Any) -> dict[str, Any]:
    """Without background, since the page is light or dark; without dragging, so that a touch scrolls the page."""
    transparent = "rgba(0,0,0,0)"
    found = dict(template="none", height=height, dragmode=False, font_family="system-ui, sans-serif", font_size=13)
    found |= dict(paper_bgcolor=transparent, plot_bgcolor=transparent)
    found |= dict(modebar_bgcolor=transparent, modebar_color=GREY, modebar_activecolor=BLUE)
    found |= dict(legend_orientation="h", legend_yref="container", legend_y=0, legend_yanchor="bottom", legend_x=0)
    found |= dict(margin_l=10, margin_r=20, margin_t=35, margin_b=10)
    return found | options
