"""Charts of bounds and probes."""

from collections.abc import Mapping
from html import escape
from typing import Any, NamedTuple, SupportsFloat

from cpc.bounds.bound import FULL_SOFTMAX, steps_of
from cpc.pages.chart import Chart, Table, axis, curve, layout, number, with_spread
from cpc.pages.palette import BLUE, GREEN, GREY, ORANGE, PURPLE, VERMILION, step_colours

DIRECTION_SYMBOLS = {"down": "triangle-down", "up": "triangle-up", "right": "triangle-right", "left": "triangle-left"}
STRATEGY_MARKS = ((BLUE, "circle"), (VERMILION, "diamond"), (GREEN, "square"), (PURPLE, "cross"), (ORANGE, "star"))


class BoundLabels(NamedTuple):
    """The labels of a chart: of the bound, of its ceiling, and of the setting that distinguishes its curves."""

    bound: str = "log N - L"
    ceiling: str = "log N"
    setting: str = "negatives"


def probe_chart(
    report: dict[str, Any], tasks: Mapping[str, str], representations: Mapping[str, str], caption: str
) -> Chart:
    """Plot the accuracy of the probes by representation, with 95 % intervals where the report has them.

    Args:
        report: for each task up to three entries, by representation. `TASK`: accuracy in percent. `TASK_interval`
            (optional): its 95 % interval. `TASK_num_steps` (optional): the number of training steps of supervised
            networks, which depends on the speed of the machine.
        tasks: colour of the bars of each task.
        representations: labels of the report's keys, from top to bottom.
        caption: the data on which the probes were tested.
    """
    names, traces, columns = list(representations.values()), [], []
    for task, colour in tasks.items():
        values, intervals = report[task], report.get(f"{task}_interval", {})
        num_steps = report.get(f"{task}_num_steps", {})
        words, above, below = [], [], []
        for key in representations:
            value, interval = values.get(key), intervals.get(key)
            shown = f" [{number(interval[0], 1)}, {number(interval[1], 1)}]" if interval else ""
            words.append(number(value, 1) + shown + (f", {num_steps[key]} steps" if key in num_steps else ""))
            has_arms = interval and value is not None
            above.append(interval[1] - value if has_arms else None)
            below.append(value - interval[0] if has_arms else None)
        error = dict(array=above, arrayminus=below, width=0)
        bar = dict(type="bar", orientation="h", name=task, x=[values.get(key) for key in representations], y=names)
        bar |= dict(customdata=words, marker_color=colour)
        traces.append(dict(bar, error_x=error, hovertemplate=f"%{{y}}, {task} (%): %{{customdata}}<extra></extra>"))
        columns.append(words)
    rows = [list(row) for row in zip(names, *columns, strict=True)]
    return Chart(
        title="Accuracy of a linear probe on the features",
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
    """Plot the bound of every step k over training, for one strategy; the records are in the order of training."""
    train_steps = [record["step"] for record in records]
    last, strategy, how_to_read = records[-1], records[-1]["strategy"], records[-1]["reading"]
    labels = _bound_labels(last)
    predictions = steps_of(last)
    names = [prediction.words for prediction in predictions]
    traces, annotations = [], []
    for index, (prediction, colour) in enumerate(zip(predictions, step_colours(len(predictions)), strict=True)):
        bounds = [record["mi_bound_nats"][index] for record in records]
        errors = [number(record["standard_error_nats"][index]) for record in records]
        options = dict(mode="lines+markers", marker_size=4, customdata=errors)
        line = curve(train_steps, bounds, prediction.name, colour, **options)
        hover = f"{prediction.words}, step %{{x}}: %{{y:.3f}} nats, standard error %{{customdata}}<extra></extra>"
        traces.append(dict(line, hovertemplate=hover))
        if index in (0, len(predictions) - 1):
            annotations.append(_annotation(train_steps[-1], bounds[-1], prediction.words, xshift=6))
    ceilings = {number(ceiling, 2): k for k, ceiling in enumerate(last["mi_ceiling_nats"])}  # many steps share one
    for height, k in ceilings.items():
        heights = [record["mi_ceiling_nats"][k] for record in records]
        ceiling = f"ceiling {labels.ceiling}"
        traces.append(curve(train_steps, heights, ceiling, GREY, line_dash="dash", showlegend=False))
        annotations.append(_annotation(train_steps[0], heights[-1], f"{ceiling} = {height}", yanchor="top"))
    rows = []
    for record in records:
        ceiling = ", ".join(dict.fromkeys(map(number, record["mi_ceiling_nats"])))
        bounds = with_spread(record["mi_bound_nats"], record["standard_error_nats"])
        rows.append([f"{record['step']}", *bounds, ceiling])
    ends = ", ".join(f"{name}: {number(bound, 2)}" for name, bound in zip(names, last["mi_bound_nats"], strict=True))
    return Chart(
        title=f"{labels.bound} over training, {labels.setting}: {strategy}",
        caption=f"Split {last['split']}. {labels.bound} with {labels.setting} {strategy}: {how_to_read}. One line "
        f"per prediction step k; the dashed line is the ceiling {labels.ceiling}. Brackets in the table hold "
        "standard errors.",
        alt=f"Line chart of {labels.bound} in nats ({how_to_read}) from training step {train_steps[0]} to "
        f"{train_steps[-1]}. At the end {ends}; ceiling {labels.ceiling}: {', '.join(ceilings)}.",
        traces=traces,
        layout=layout(
            500,
            xaxis=axis("training step"),
            yaxis=axis(f"{labels.bound} (nats)", rangemode="tozero"),
            annotations=_finite_annotations(annotations),
            legend_title_text="step k ",
            margin_r=15 + 6 * max(map(len, names)),
        ),
        table=Table(["training step", *names, f"ceiling {labels.ceiling}"], rows),
    )


def step_chart(records: list[dict[str, Any]]) -> Chart:
    """Plot the bound and the accuracy at the end of training by prediction step k; one record per strategy."""
    traces, annotations, rows = [], [], []
    predictions, labels = steps_of(records[0]), _bound_labels(records[0])
    directions = list(dict.fromkeys(prediction.direction for prediction in predictions))
    num_series, first = len(records) * len(directions), predictions[0].k
    ticks = list(dict.fromkeys(prediction.k for prediction in predictions))
    for index, (record, (colour, symbol)) in enumerate(zip(records, STRATEGY_MARKS, strict=False)):
        strategy, bounds, ceilings = record["strategy"], record["mi_bound_nats"], record["mi_ceiling_nats"]
        errors, shown = record["standard_error_nats"], escape(strategy)
        accuracies = [None if accuracy is None else 100 * accuracy for accuracy in record["accuracy"]]
        chances = [100 / n if n else None for n in record["num_candidates"]]
        bound_words = with_spread(bounds, errors)
        for order, direction in enumerate(directions):
            columns = [column for column, prediction in enumerate(predictions) if prediction.direction == direction]
            steps = [predictions[column].k for column in columns]
            # Points are shifted sideways because the bounds of different strategies are often nearly equal.
            shift = 0.2 * min(1, 3 / num_series) * (index * len(directions) + order - (num_series - 1) / 2)
            points: dict[str, Any] = dict(
                type="scatter", mode="markers", x=[k + shift for k in steps], customdata=steps
            )
            points |= dict(legendgroup=strategy, marker_color=colour, marker_size=8)
            points |= dict(marker_symbol=symbol if len(directions) == 1 else DIRECTION_SYMBOLS[direction])
            dashes = dict(line_dash="dash", legendgroup=strategy, showlegend=False)
            series_name = f"{shown}, {direction}" if direction else shown
            bound_hover = f"k = %{{customdata}}, {series_name}: %{{text}} nats (standard error)<extra></extra>"
            accuracy_hover = f"k = %{{customdata}}, {series_name}: %{{y:.1f}} %<extra></extra>"
            values: tuple[list[Any], ...] = (bounds, bound_words, errors, ceilings, accuracies, chances)
            y, words, error, heights, rates, chance = ([each[column] for column in columns] for each in values)
            bound_points = dict(points, y=y, text=words, error_y=dict(array=error, color=colour))
            traces += [
                dict(bound_points, name=f"{series_name}:<br>{escape(record['reading'])}", hovertemplate=bound_hover),
                curve(steps, heights, f"ceiling {labels.ceiling}", colour, **dashes),
                dict(points, name=series_name, y=rates, yaxis="y2", showlegend=False, hovertemplate=accuracy_hover),
                curve(steps, chance, "chance 1/N", colour, yaxis="y2", **dashes),
            ]
        # The dashed lines of all strategies lie close together: only those of the last strategy are labelled.
        annotations = [_annotation(first, ceilings[0], f"ceiling {labels.ceiling}", yanchor="top")]
        annotations += [_annotation(first, chances[0], "chance 1/N", yanchor="bottom", yref="y2")]
        cells = [bound_words, map(number, ceilings)]
        cells += [[number(value, 2) for value in values] for values in (record["num_candidates"], accuracies, chances)]
        names = [f"{strategy}, {prediction.words}" for prediction in predictions]
        rows += [list(row) for row in zip(names, *cells, strict=True)]
    header = [f"{labels.setting}, step", f"{labels.bound} (nats)", f"{labels.ceiling} (nats)", "N"]
    header += ["accuracy (%)", "chance (%)"]
    ahead = "rows of patches ahead" if directions[0] else "latents ahead"
    return Chart(
        title=f"{labels.bound} and accuracy by prediction step, after training",
        caption=f"Split {records[0]['split']}, training step {records[0]['step']}. Whiskers: one standard error of "
        f"{labels.bound}. Dashed lines: the ceiling {labels.ceiling} in the upper chart, the accuracy of "
        "chance, 1/N, in the lower chart.",
        alt=f"Two charts over the prediction step k: {labels.bound} in nats with its ceiling, accuracy with the "
        "accuracy of chance. "
        + "".join(f"{record['strategy']}: {record['reading']}. " for record in records)
        + "; ".join(f"{name}: {bound} nats, {accuracy} %" for name, bound, _, _, accuracy, _ in rows),
        traces=traces,
        layout=layout(
            600,
            xaxis=axis(f"prediction step k ({ahead})", tickvals=ticks, anchor="y2"),
            yaxis=axis(f"{labels.bound} (nats)", rangemode="tozero", domain=[0.54, 1]),
            yaxis2=axis("accuracy (%)", rangemode="tozero", domain=[0, 0.46]),
            annotations=_finite_annotations(annotations),
        ),
        table=Table(header, rows),
    )


def _bound_labels(record: dict[str, Any]) -> BoundLabels:
    """Return the labels of a record's bound. With the full softmax the entropy H of the classes replaces log N."""
    return BoundLabels("H - L", "H", "objective") if record["strategy"] == FULL_SOFTMAX else BoundLabels()


def _annotation(x: int, y: SupportsFloat | None, text: str, **options: Any) -> dict[str, Any]:
    return dict(x=x, y=y, text=text, xanchor="left", showarrow=False, **options)


def _finite_annotations(annotations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [annotation for annotation in annotations if number(annotation["y"]) != "n/a"]
