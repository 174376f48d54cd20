"""Estimate against truth, and estimates while critics train: figures in Plotly's words, with their values.

A place is a task, dimensions, N and a critic.
"""

import math
from collections.abc import Sequence
from typing import Any

from cpc.quickstart.charts import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    Chart,
    Table,
    axis,
    curve,
    layout,
    number,
)

Row = dict[str, Any]
COLOURS = {
    "info_nce": BLUE,
    "nwj": VERMILION,
    "tuba": GREEN,
    "interpolated": PURPLE,
    "dv": ORANGE,
    "mine": SKY,
    "js": "#8a6d3b",
    "smile": "#a868b8",
    "leave_one_out": GREY,
}
MARKS = ("circle", "square", "diamond", "cross", "x", "star", "pentagon", "hexagon", "triangle-up")
SYMBOLS = dict(zip(COLOURS, MARKS, strict=True))


def estimate_chart(place: Row, rows: Sequence[Row], exact: Sequence[Row] = ()) -> Chart:
    """Mean estimate, bias and variance by true information, one line per estimator.

    Args:
        place: where.
        rows: of that place.
        exact: rows of InfoNCE with the exact critic, same task, dimensions and N: what a trained one can read at most.
    """
    informations = sorted({row["true_nats"] for row in rows})
    top = 1.5 * max(informations)
    traces: list[Row] = [curve(informations, informations, "truth", GREY, line_dash="dot")]
    for name in dict.fromkeys(row["estimator"] for row in rows):
        own = sorted((row for row in rows if row["estimator"] == name), key=lambda row: row["true_nats"])
        x, deviations = [row["true_nats"] for row in own], [row["standard_deviation_nats"] for row in own]
        points: Row = dict(type="scatter", mode="lines+markers", x=x, name=name, legendgroup=name)
        points |= dict(line_color=COLOURS[name], line_width=1.5, marker_symbol=SYMBOLS[name], marker_size=7)
        hover = f"{name}, true %{{x:.2f}}: %{{y:.4~g}}<extra></extra>"
        error = dict(array=deviations, color=COLOURS[name], thickness=1, width=3)
        variances = [value * value if value else None for value in deviations]
        traces += [
            dict(points, y=[row["mean_nats"] for row in own], error_y=error, hovertemplate=hover),
            dict(points, y=[row["bias_nats"] for row in own], yaxis="y2", showlegend=False, hovertemplate=hover),
            dict(points, y=variances, yaxis="y3", showlegend=False, hovertemplate=hover),
        ]
        if name == "info_nce":
            optima = [row["gaussian_optimum_nats"] for row in own]
            traces.append(curve(x, optima, "InfoNCE, Gaussians of many dimensions", BLUE, line_dash="dash"))
            if exact:
                best = sorted((row["true_nats"], row["mean_nats"]) for row in exact)
                truths, readings = zip(*best, strict=True)
                traces.append(curve(truths, readings, "InfoNCE, exact critic", BLUE, line_dash="dot"))
    ceiling = math.log(place["num_candidates"])
    traces.append(curve([informations[0], informations[-1]], [ceiling] * 2, "ceiling log N", GREY, line_dash="dash"))
    table = _table(rows)
    return Chart(
        title=f"{_words(place)}: estimate against truth",
        caption="Above: means, whiskers one standard deviation of an estimate from one matrix; dotted, the truth; "
        "dashed, the ceiling log N and what the exact critic reads by InfoNCE on Gaussians of many dimensions; for "
        "trained critics, dotted, what the exact one reads by InfoNCE on this task, if it was measured. Middle: "
        "bias. Below: variance. What leaves the picture is in the table.",
        alt=f"Line charts of estimates, bias and variance by true information for {_words(place)}. "
        + "; ".join(f"{cells[0]}, true {cells[2]}: {cells[3]}" for cells in table.rows),
        traces=traces,
        layout=layout(
            820,
            xaxis=axis("true information (nats)", anchor="y3"),
            yaxis=axis("estimate (nats)", domain=[0.56, 1], range=[-0.5, top]),
            yaxis2=axis("bias (nats)", domain=[0.28, 0.52], range=[-0.8 * max(informations), 0.5 * max(informations)]),
            yaxis3=axis("variance (nats^2)", domain=[0, 0.24], type="log", range=[-4, 3], exponentformat="power"),
        ),
        table=table,
    )


def course_chart(place: Row, courses: Sequence[Row]) -> Chart:
    """Estimates on the training batches while the truth rises in steps: figure 2 of Poole et al. 2019."""
    by_level = {course["true_nats"]: course["steps"] for course in courses}
    traces: list[Row] = []
    for truth, steps in by_level.items():
        traces.append(curve([steps[0], steps[-1]], [truth] * 2, "truth", GREY, showlegend=truth == min(by_level)))
    rows = []
    for name in dict.fromkeys(course["estimator"] for course in courses):
        own = [course for course in courses if course["estimator"] == name]
        x = [step for course in own for step in course["steps"]]
        y = [value for course in own for value in course["estimates_nats"]]
        traces.append(curve(x, y, name, COLOURS[name]))
        rows += [[name, number(course["true_nats"], 2), number(course["estimates_nats"][-1])] for course in own]
    last = max(steps[-1] for steps in by_level.values())
    ceiling = math.log(place["num_candidates"])
    traces.append(curve([0, last], [ceiling] * 2, "ceiling log N", GREY, line_dash="dash"))
    return Chart(
        title=f"{_words(place)}: while the critic trains",
        caption="Each estimator's own critic, on its training batches, means over blocks of steps; the true "
        "information rises in steps. Table: the last block at each information.",
        alt=f"Line chart of estimates over {last:.0f} training steps for {_words(place)}, the truth rising from "
        f"{min(by_level):.1f} to {max(by_level):.1f} nats.",
        traces=traces,
        layout=layout(
            460,
            xaxis=axis("training step"),
            yaxis=axis("estimate (nats)", range=[-0.5, 1.5 * max(by_level)]),
        ),
        table=Table(["estimator", "true (nats)", "last block (nats)"], rows),
    )


def _table(rows: Sequence[Row]) -> Table:
    cells = []
    for row in rows:
        deviation = row["standard_deviation_nats"]
        variance = None if deviation is None else deviation**2
        mean = f"{number(row['mean_nats'])} ({number(row['standard_error_nats'])})"
        values = [number(row["true_nats"], 2), mean, number(row["bias_nats"]), number(variance)]
        cells.append([row["estimator"], row["side"], *values])
    return Table(["estimator", "bound", "true (nats)", "mean (standard error)", "bias", "variance"], cells)


def _words(place: Row) -> str:
    return "{task}, D = {dim}, N = {num_candidates}, {critic} critic".format(**place)
