"""Charts of bounds and probes."""

from collections.abc import Mapping
from typing import Any, NamedTuple, SupportsFloat

from cpc.bounds.bound import FULL_SOFTMAX, steps_of
from cpc.pages.chart import Chart, Table, axis, curve, layout, number, with_spread
from cpc.pages.palette import GREY, step_colours


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


def _bound_labels(record: dict[str, Any]) -> BoundLabels:
    """Return the labels of a record's bound. With the full softmax the entropy H of the classes replaces log N."""
    return BoundLabels("H - L", "H", "objective") if record["strategy"] == FULL_SOFTMAX else BoundLabels()


def _annotation(x: int, y: SupportsFloat | None, text: str, **options: Any) -> dict[str, Any]:
    return dict(x=x, y=y, text=text, xanchor="left", showarrow=False, **options)


def _finite_annotations(annotations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [annotation for annotation in annotations if number(annotation["y"]) != "n/a"]
