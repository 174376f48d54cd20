"""The quickstart's charts: each a figure, its words, and the table of its values.

Figures are plain dicts in Plotly's words (`line_color` for `line.color`), so that nothing here needs the library. K
steps (of grids: of all directions), n points.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple, SupportsFloat

import numpy as np

from cpc.bounds.bound import steps_of

# Hues of Okabe and Ito's colour-blind-safe palette, at luminances that stand out from white and from near-black alike.
BLUE, VERMILION, GREEN, PURPLE = "#2079b8", "#d55e00", "#00906a", "#bf6597"
ORANGE, SKY, GREY = "#c08500", "#56b4e9", "#858b94"
STEP_COLOURS = (BLUE, "#a868b8", VERMILION)  # from k = 1 to k = K
TASKS = {"phones": BLUE, "speaker": VERMILION}
REPRESENTATIONS = {
    "majority": "majority",
    "random": "random c",
    "mfcc": "MFCC",
    "cpc_z": "CPC z",
    "cpc": "CPC c",
    "supervised": "supervised",
}
DIRECTION_SYMBOLS = {"down": "triangle-down", "up": "triangle-up", "right": "triangle-right", "left": "triangle-left"}
PROBE_CAPTION = (
    "Phones: frames of speakers and sentences that nothing was trained on. Speaker: frames of other sentences by the "
    "same speakers."
)
STRATEGY_MARKS = ((BLUE, "circle"), (VERMILION, "diamond"), (GREEN, "square"), (PURPLE, "cross"), (ORANGE, "star"))
BROAD_CLASSES = {
    "vowel": (BLUE, "circle", "iy ih eh ae aa oh ao ah uh uw ax axr er ey ay aw oy ow ia ea"),
    "stop": (VERMILION, "square", "p b t d k g dx"),
    "fricative": (GREEN, "diamond", "f v th dh s z sh hh"),
    "nasal": (PURPLE, "triangle-up", "m n ng"),
    "approximant or liquid": (ORANGE, "cross", "l el r w y"),
    "affricate": (SKY, "star", "ch jh"),
    "silence": (GREY, "circle-open", "sil"),
    "other": (GREY, "x", ""),
}


class ContextsMap(NamedTuple):
    """Contexts in two dimensions.

    Attributes:
        x: `[n, 2]` positions.
        labels: n phones.
        method: how the two dimensions were found, for the caption.
    """

    x: np.ndarray
    labels: list[str]
    method: str = "projected to two dimensions"


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


def broad_class(phone: str) -> str:
    """The broad phonetic class of a phone of `cpc.data.made.phones`; `other` for what it does not name."""
    return next((name for name, (_, _, phones) in BROAD_CLASSES.items() if phone in phones.split()), "other")


def probe_chart(
    report: dict[str, Any],
    tasks: Mapping[str, str] = TASKS,
    representations: Mapping[str, str] = REPRESENTATIONS,
    caption: str = PROBE_CAPTION,
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
        layout=_layout(
            440,
            xaxis=_axis("accuracy of a linear probe (%)", rangemode="tozero"),
            yaxis=_axis("", autorange="reversed", ticklabelstandoff=6),
            bargap=0.25,
        ),
        table=Table(["representation", *(f"{task} (%)" for task in tasks)], rows),
    )


def training_chart(records: list[dict[str, Any]]) -> Chart:
    """The bound of every step k over training, with one strategy; records in the order of training."""
    at = [record["step"] for record in records]
    last, strategy, reading = records[-1], records[-1]["strategy"], records[-1]["reading"]
    predictions = steps_of(last)
    names = [prediction.words for prediction in predictions]
    traces, labels = [], []
    for index, (prediction, colour) in enumerate(zip(predictions, _step_colours(len(predictions)), strict=True)):
        bounds = [record["mi_bound_nats"][index] for record in records]
        errors = [number(record["standard_error_nats"][index]) for record in records]
        line = _line(at, bounds, prediction.name, colour, mode="lines+markers", marker_size=4, customdata=errors)
        hover = f"{prediction.words}, step %{{x}}: %{{y:.3f}} nats, standard error %{{customdata}}<extra></extra>"
        traces.append(dict(line, hovertemplate=hover))
        if index in (0, len(predictions) - 1):
            labels.append(_label(at[-1], bounds[-1], prediction.words, xshift=6))
    ceilings = {number(ceiling, 2): k for k, ceiling in enumerate(last["mi_ceiling_nats"])}  # most steps share one
    for words, k in ceilings.items():
        heights = [record["mi_ceiling_nats"][k] for record in records]
        traces.append(_line(at, heights, "ceiling log N", GREY, line_dash="dash", showlegend=False))
        labels.append(_label(at[0], heights[-1], f"ceiling log N = {words}", yanchor="top"))
    ends = ", ".join(f"{name}: {number(bound, 2)}" for name, bound in zip(names, last["mi_bound_nats"], strict=True))
    return Chart(
        title=f"log N - L over training, negatives: {strategy}",
        caption=f"Split {last['split']}. With negatives {strategy} log N - L is: {reading}. One line per prediction "
        "step k; dashed, the ceiling log N. In the table: standard errors in brackets.",
        alt=f"Line chart of log N - L in nats ({reading}) from training step {at[0]} to {at[-1]}. At the end {ends}; "
        f"ceiling log N: {', '.join(ceilings)}.",
        traces=traces,
        layout=_layout(
            500,
            xaxis=_axis("training step"),
            yaxis=_axis("log N - L (nats)", rangemode="tozero"),
            annotations=_drawable(labels),
            legend_title_text="step k ",
            margin_r=15 + 6 * max(map(len, names)),
        ),
        table=Table(
            ["training step", *names, "ceiling log N"],
            [
                [
                    f"{record['step']}",
                    *_with_spread(record["mi_bound_nats"], record["standard_error_nats"]),
                    ", ".join(dict.fromkeys(number(ceiling) for ceiling in record["mi_ceiling_nats"])),
                ]
                for record in records
            ],
        ),
    )


def step_chart(records: list[dict[str, Any]]) -> Chart:
    """Bound and accuracy at the end of training by prediction step k; one record per strategy."""
    traces, labels, rows = [], [], []
    predictions = steps_of(records[0])
    directions = list(dict.fromkeys(prediction.direction for prediction in predictions))
    num_series, first = len(records) * len(directions), predictions[0].k
    for index, (record, (colour, symbol)) in enumerate(zip(records, STRATEGY_MARKS, strict=False)):
        strategy, bounds, ceilings = record["strategy"], record["mi_bound_nats"], record["mi_ceiling_nats"]
        errors, shown = record["standard_error_nats"], escape(strategy)
        accuracies = [None if accuracy is None else 100 * accuracy for accuracy in record["accuracy"]]
        chances = [100 / n if n else None for n in record["num_candidates"]]
        bound_words = _with_spread(bounds, errors)
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
                _line(steps, _at(columns, ceilings), "ceiling log N", colour, **dashes),
                dict(points, name=of, y=rates, yaxis="y2", showlegend=False, hovertemplate=accuracy_hover),
                _line(steps, _at(columns, chances), "chance 1/N", colour, yaxis="y2", **dashes),
            ]
        # The dashes of all strategies lie close together: the last one's carry the words.
        labels = [_label(first, ceilings[0], "ceiling log N", yanchor="top")]
        labels += [_label(first, chances[0], "chance 1/N", yanchor="bottom", yref="y2")]
        cells = [bound_words, map(number, ceilings)]
        cells += [[number(value, 2) for value in values] for values in (record["num_candidates"], accuracies, chances)]
        names = [f"{strategy}, {prediction.words}" for prediction in predictions]
        rows += [list(row) for row in zip(names, *cells, strict=True)]
    ahead = "rows of patches ahead" if directions[0] else "latents ahead"
    return Chart(
        title="log N - L and accuracy by prediction step, after training",
        caption=f"Split {records[0]['split']}, training step {records[0]['step']}. Whiskers: one standard error "
        "of log N - L. Dashed: above, the ceiling log N; below, the accuracy of chance, 1/N.",
        alt="Two charts over the prediction step k: log N - L in nats with its ceiling, accuracy with that of chance. "
        + "".join(f"{record['strategy']}: {record['reading']}. " for record in records)
        + "; ".join(f"{name}: {bound} nats, {accuracy} %" for name, bound, _, _, accuracy, _ in rows),
        traces=traces,
        layout=_layout(
            600,
            xaxis=_axis(f"prediction step k ({ahead})", dtick=1, anchor="y2"),
            yaxis=_axis("log N - L (nats)", rangemode="tozero", domain=[0.54, 1]),
            yaxis2=_axis("accuracy (%)", rangemode="tozero", domain=[0, 0.46]),
            annotations=_drawable(labels),
        ),
        table=Table(["negatives, step", "log N - L (nats)", "log N (nats)", "N", "accuracy (%)", "chance (%)"], rows),
    )


def contexts_chart(contexts_map: ContextsMap) -> Chart:
    """Contexts in two dimensions, coloured by broad phonetic class."""
    x, labels = np.asarray(contexts_map.x, dtype=float), np.array(contexts_map.labels, dtype=str)
    counts, traces, rows = Counter(contexts_map.labels), [], []
    for name, (colour, symbol, _) in BROAD_CLASSES.items():
        phones = sorted(phone for phone in counts if broad_class(phone) == name)
        members = np.isin(labels, phones)
        # Not scattergl, which shows nothing where there is no WebGL.
        points: dict[str, Any] = dict(type="scatter", mode="markers", name=name)
        points |= dict(x=x[members, 0].round(4).tolist(), y=x[members, 1].round(4).tolist())
        points |= dict(marker_color=colour, marker_symbol=symbol, marker_size=5, marker_opacity=0.85)
        points |= dict(customdata=[escape(label) for label in labels[members]])
        if phones:
            traces.append(dict(points, hovertemplate=f"%{{customdata}} ({name})<extra></extra>"))
        for phone in phones:
            own = x[labels == phone]
            rows.append([phone, name, f"{counts[phone]}", *_with_spread(own.mean(0), own.std(0), digits=2)])
    return Chart(
        title="Contexts by phone",
        caption=f"{len(labels)} contexts, {contexts_map.method}; neighbours in the picture need not be neighbours in "
        "the contexts' own space. The table gives means and, in brackets, standard deviations.",
        alt=f"Scatter plot of {len(labels)} contexts: " + ", ".join(f"{len(t['x'])} {t['name']}" for t in traces),
        traces=traces,
        layout=_layout(
            600, xaxis=_axis("first dimension"), yaxis=_axis("second dimension"), legend_itemsizing="constant"
        ),
        table=Table(["phone", "class", "contexts", "first dimension", "second dimension"], rows),
    )


def _at(columns: list[int], values: list[Any]) -> list[Any]:
    return [values[column] for column in columns]


def _with_spread(
    values: Iterable[SupportsFloat | None], spreads: Iterable[SupportsFloat | None], digits: int = 3
) -> list[str]:
    return [f"{number(v, digits)} ({number(s, digits)})" for v, s in zip(values, spreads, strict=True)]


def _step_colours(num_steps: int) -> list[str]:
    """Colours from k = 1 to k = K, linear in between."""
    ends = np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in STEP_COLOURS])
    at = np.linspace(0, len(ends) - 1, num_steps)
    channels = np.stack([np.interp(at, range(len(ends)), channel) for channel in ends.T], axis=1)
    return ["#{:02x}{:02x}{:02x}".format(*colour) for colour in channels.round().astype(int)]


def _line(x: list[int], y: Sequence[SupportsFloat | None], name: str, colour: str, **options: Any) -> dict[str, Any]:
    hover = f"{name}: %{{y:.3~f}}<extra></extra>"
    line = dict(type="scatter", mode="lines", x=x, y=y, name=name, line_color=colour, line_width=2, hovertemplate=hover)
    return line | options


def _label(x: int, y: SupportsFloat | None, text: str, **options: Any) -> dict[str, Any]:
    return dict(x=x, y=y, text=text, xanchor="left", showarrow=False, **options)


def _drawable(labels: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [label for label in labels if number(label["y"]) != "n/a"]


def _axis(title: str, **options: Any) -> dict[str, Any]:
    return dict(title_text=title, automargin=True, **options)


def _layout(height: int, **options: Any) -> dict[str, Any]:
    """Without background, since the page is light or dark; without dragging, so that a touch scrolls the page."""
    transparent = "rgba(0,0,0,0)"
    layout = dict(template="none", height=height, dragmode=False, font_family="system-ui, sans-serif", font_size=13)
    layout |= dict(paper_bgcolor=transparent, plot_bgcolor=transparent)
    layout |= dict(modebar_bgcolor=transparent, modebar_color=GREY, modebar_activecolor=BLUE)
    layout |= dict(legend_orientation="h", legend_yref="container", legend_y=0, legend_yanchor="bottom", legend_x=0)
    layout |= dict(margin_l=10, margin_r=20, margin_t=35, margin_b=10)
    return layout | options
