"""calibration.html: estimates against truths as one page that needs neither network nor server.

Figures are in Plotly's words, with their values. A place is a task, dimensions, N and a critic.
"""

import math
from collections.abc import Iterator, Sequence
from html import escape
from itertools import chain
from pathlib import Path
from typing import Any

from cpc.pages.charts import Chart, Table, axis, curve, layout, number
from cpc.pages.page import sections, write_sections
from cpc.pages.palette import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION

Row = dict[str, Any]
MARKS = {
    "info_nce": (BLUE, "circle"),
    "nwj": (VERMILION, "square"),
    "tuba": (GREEN, "diamond"),
    "interpolated": (PURPLE, "cross"),
    "dv": (ORANGE, "x"),
    "mine": (SKY, "star"),
    "js": ("#8a6d3b", "pentagon"),
    "smile": ("#a868b8", "hexagon"),
    "leave_one_out": (GREY, "triangle-up"),
}
HEADING = """<h1>cpc calibrate: estimators of information against known truths</h1>
<p>What each estimator reads from matrices of N x N scores, where the information is known in closed form: with the
exact critic, whose shortcomings are the estimator's alone, and with critics that were trained.</p>
"""
READING = """<p><b>Sides.</b> A <i>lower</i> bound lies below the truth in the mean, whatever the critic: not on every
matrix. NWJ, TUBA and JS have no ceiling, and pay with a variance that grows as exp(I): of few negatives the mean of
exp(s) is nearly always too small. InfoNCE pays with its ceiling log N, and below it with a bias that the dashed line
shows. <i>Neither</i>: DV and MINE take the logarithm of a sample's mean and read too much; SMILE's clipping moves it
either way. <i>leave_one_out</i> is an upper bound, and needs the conditional density.</p>
<p><b>n/a.</b> A reading that is not finite: additive uniform noise has pairs that cannot be, whose exact score is minus
infinity; and where no negative is possible, nothing bounds the estimate.</p>
<p><b>Alike.</b> With the exact critic NWJ, TUBA and JS are one and the same, as are DV and MINE: they differ in how a
critic is trained for them.</p>
"""


def write_calibration_page(path: Path, report: dict[str, Any]) -> None:
    """Write the page.

    Args:
        path: the HTML file.
        report: of `calibrate`.

    Raises:
        ValueError: if plotly is not installed.
    """
    words = f"{report['num_matrices']} matrices for each mean; seed {report['seed']}; {report['seconds']:.0f} s."
    if report["training"]:
        words = f"{report['steps']} training steps at each information; {words}"
    heading = [HEADING, f'<p class="facts">{escape(words)}</p>\n']
    write_sections(path, chain(heading, sections(_charts(report))), [READING], title="cpc calibrate")


def _charts(report: dict[str, Any]) -> Iterator[Chart]:
    for place in dict.fromkeys(map(_place, report["rows"])):
        rows, courses = ([row for row in report[kind] if _place(row) == place] for kind in ("rows", "training"))
        exact = [row for row in report["rows"] if _place(row) == (*place[:3], "exact")] if place[3] != "exact" else []
        yield estimate_chart(rows, [row for row in exact if row["estimator"] == "info_nce"])
        if courses:
            yield course_chart(courses)


def _place(row: Row) -> tuple[Any, ...]:
    return row["task"], row["dim"], row["num_candidates"], row["critic"]


def estimate_chart(rows: Sequence[Row], exact: Sequence[Row] = ()) -> Chart:
    """Mean estimate, bias and variance by true information, one line per estimator.

    Args:
        rows: of one place.
        exact: rows of InfoNCE with the exact critic, same task, dimensions and N: what a trained one can read at most.
    """
    place, informations = rows[0], sorted({row["true_nats"] for row in rows})
    traces: list[Row] = [curve(informations, informations, "truth", GREY, line_dash="dot")]
    for name in dict.fromkeys(row["estimator"] for row in rows):
        own = sorted((row for row in rows if row["estimator"] == name), key=lambda row: row["true_nats"])
        x, (colour, symbol) = [row["true_nats"] for row in own], MARKS[name]
        points = curve(x, [], name, colour, mode="lines+markers", line_width=1.5, legendgroup=name)
        points |= dict(marker_symbol=symbol, marker_size=7)
        points |= dict(hovertemplate=f"{name}, true %{{x:.2f}}: %{{y:.4~g}}<extra></extra>")
        deviations = [row["standard_deviation_nats"] for row in own]
        error = dict(array=deviations, color=colour, thickness=1, width=3)
        variances = [value * value if value else None for value in deviations]
        traces += [
            dict(points, y=[row["mean_nats"] for row in own], error_y=error),
            dict(points, y=[row["bias_nats"] for row in own], yaxis="y2", showlegend=False),
            dict(points, y=variances, yaxis="y3", showlegend=False),
        ]
        if name == "info_nce":
            optima = [row["gaussian_optimum_nats"] for row in own]
            traces.append(curve(x, optima, "InfoNCE, Gaussians of many dimensions", BLUE, line_dash="dash"))
            if exact:
                best = sorted((row["true_nats"], row["mean_nats"]) for row in exact)
                truths, readings = zip(*best, strict=True)
                traces.append(curve(truths, readings, "InfoNCE, exact critic", BLUE, line_dash="dot"))
    traces.append(_ceiling(place, informations[0], informations[-1]))
    table, most = _table(rows), max(informations)
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
            yaxis=axis("estimate (nats)", domain=[0.56, 1], range=[-0.5, 1.5 * most]),
            yaxis2=axis("bias (nats)", domain=[0.28, 0.52], range=[-0.8 * most, 0.5 * most]),
            yaxis3=axis("variance (nats^2)", domain=[0, 0.24], type="log", range=[-4, 3], exponentformat="power"),
        ),
        table=table,
    )


def course_chart(courses: Sequence[Row]) -> Chart:
    """Estimates on the training batches while the truth rises in steps: figure 2 of Poole et al. 2019."""
    place, by_level = courses[0], {course["true_nats"]: course["steps"] for course in courses}
    traces: list[Row] = []
    for truth, steps in by_level.items():
        traces.append(curve([steps[0], steps[-1]], [truth] * 2, "truth", GREY, showlegend=truth == min(by_level)))
    rows = []
    for name in dict.fromkeys(course["estimator"] for course in courses):
        own = [course for course in courses if course["estimator"] == name]
        x = [step for course in own for step in course["steps"]]
        y = [value for course in own for value in course["estimates_nats"]]
        traces.append(curve(x, y, name, MARKS[name][0]))
        rows += [[name, number(course["true_nats"], 2), number(course["estimates_nats"][-1])] for course in own]
    last = max(steps[-1] for steps in by_level.values())
    traces.append(_ceiling(place, 0, last))
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


def _ceiling(place: Row, first: int | float, last: int | float) -> Row:
    return curve([first, last], [math.log(place["num_candidates"])] * 2, "ceiling log N", GREY, line_dash="dash")


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
