"""The page calibration.html: estimates and true informations, readable without network or server.

Charts are dictionaries of Plotly with their values. A setting is a task, dimensions, N and a critic.
"""

import math
from collections.abc import Iterator, Sequence
from html import escape
from itertools import chain
from pathlib import Path
from typing import Any

from cpc.pages.chart import Chart, Table, axis, curve, layout, number
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
    "js_kl": ("#4b5d9a", "triangle-down"),
    "anchor": ("#1f8a8a", "star-diamond"),
    "goodness_of_fit": ("#7a7a2e", "bowtie"),
    "leave_one_out": (GREY, "triangle-up"),
}
HEADING = """<h1>cpc calibrate: estimators of information against known truths</h1>
<p>Estimates from matrices of N x N scores of tasks whose information is known in closed form. With the exact critic
errors come only from the estimator; trained critics add their own errors.</p>
"""
READING = """<p><b>Bounds.</b> The mean of a <i>lower</i> bound is below the truth for any critic; single matrices may
exceed it. NWJ, TUBA and JS have no ceiling, but their variance grows as exp(I): with few negatives the mean of
exp(s) is nearly always too small. InfoNCE has the ceiling log N; the dashed line shows its bias below the ceiling.
<i>Neither</i>: DV and MINE take the logarithm of a sample mean and overestimate; the clipping of SMILE can change the
estimate in both directions. <i>js_kl</i> is the smallest information that an estimate of the Jensen-Shannon divergence
allows, mostly far below the truth. <i>anchor</i> is as good as its critic. <i>goodness_of_fit</i> (of CEBRA) leaves
the positive out of the sum of InfoNCE: it has no ceiling, and with the exact critic it is above the truth.
<i>leave_one_out</i> is an upper bound and needs the conditional density.</p>
<p><b>n/a.</b> The estimate is not finite. With additive uniform noise some pairs are impossible and have the exact
score minus infinity; if a row has no possible negative, the estimate is unbounded.</p>
<p><b>Equal estimators.</b> With the exact critic NWJ, TUBA and JS are identical, and so are DV and MINE: they differ
only in the training of a critic. <i>anchor</i> is then the mean log density ratio of the pairs, which has no bias.</p>
"""


def write_calibration_page(path: Path, report: dict[str, Any]) -> None:
    """Write the result of `calibrate` as a page; raise ValueError if plotly is not installed."""
    words = f"{report['num_matrices']} matrices for each mean; seed {report['seed']}; {report['seconds']:.0f} s."
    if report["training"]:
        words = f"{report['steps']} training steps at each information; {words}"
    heading = [HEADING, f'<p class="facts">{escape(words)}</p>\n']
    write_sections(path, chain(heading, sections(_charts(report))), [READING], title="cpc calibrate")


def _charts(report: dict[str, Any]) -> Iterator[Chart]:
    for setting in dict.fromkeys(map(_setting, report["rows"])):
        rows, courses = ([row for row in report[kind] if _setting(row) == setting] for kind in ("rows", "training"))
        exact = (
            [row for row in report["rows"] if _setting(row) == (*setting[:3], "exact")] if setting[3] != "exact" else []
        )
        yield estimate_chart(rows, [row for row in exact if row["estimator"] == "info_nce"])
        if courses:
            yield course_chart(courses)


def _setting(row: Row) -> tuple[Any, ...]:
    return row["task"], row["dim"], row["num_candidates"], row["critic"]


def estimate_chart(rows: Sequence[Row], exact: Sequence[Row] = ()) -> Chart:
    """Return a chart of mean estimate, bias and variance by true information, one line per estimator.

    `exact` are the rows of InfoNCE with the exact critic, which a trained critic cannot exceed.
    """
    setting, informations = rows[0], sorted({row["true_nats"] for row in rows})
    traces: list[Row] = [curve(informations, informations, "truth", GREY, line_dash="dot")]
    for name in dict.fromkeys(row["estimator"] for row in rows):
        name_rows = sorted((row for row in rows if row["estimator"] == name), key=lambda row: row["true_nats"])
        x, (colour, symbol) = [row["true_nats"] for row in name_rows], MARKS[name]
        points = curve(x, [], name, colour, mode="lines+markers", line_width=1.5, legendgroup=name)
        points |= dict(marker_symbol=symbol, marker_size=7)
        points |= dict(hovertemplate=f"{name}, true %{{x:.2f}}: %{{y:.4~g}}<extra></extra>")
        deviations = [row["standard_deviation_nats"] for row in name_rows]
        error = dict(array=deviations, color=colour, thickness=1, width=3)
        variances = [value * value if value else None for value in deviations]
        traces += [
            dict(points, y=[row["mean_nats"] for row in name_rows], error_y=error),
            dict(points, y=[row["bias_nats"] for row in name_rows], yaxis="y2", showlegend=False),
            dict(points, y=variances, yaxis="y3", showlegend=False),
        ]
        if name == "info_nce":
            optima = [row["gaussian_optimum_nats"] for row in name_rows]
            traces.append(curve(x, optima, "InfoNCE, Gaussians of many dimensions", BLUE, line_dash="dash"))
            if exact:
                best = sorted((row["true_nats"], row["mean_nats"]) for row in exact)
                truths, estimates = zip(*best, strict=True)
                traces.append(curve(truths, estimates, "InfoNCE, exact critic", BLUE, line_dash="dot"))
    traces.append(_ceiling(setting, informations[0], informations[-1]))
    table, most = _table(rows), max(informations)
    return Chart(
        title=f"{_title(setting)}: estimate against truth",
        caption="Above: mean estimates; a whisker is one standard deviation of the estimate from one matrix. The "
        "dotted line is the truth. Dashed lines are the ceiling log N and InfoNCE with the exact critic on "
        "Gaussians of many dimensions. For trained critics a second dotted line is InfoNCE with the exact "
        "critic on this task, if it was measured. Middle: bias. Below: variance. Values beyond the axes are "
        "in the table.",
        alt=f"Line charts of estimates, bias and variance by true information for {_title(setting)}. "
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
    """Return a chart of estimates on training batches while the information rises: figure 2 of Poole et al. 2019."""
    setting, level_steps = courses[0], {course["true_nats"]: course["steps"] for course in courses}
    traces: list[Row] = []
    for truth, steps in level_steps.items():
        traces.append(curve([steps[0], steps[-1]], [truth] * 2, "truth", GREY, showlegend=truth == min(level_steps)))
    rows = []
    for name in dict.fromkeys(course["estimator"] for course in courses):
        name_courses = [course for course in courses if course["estimator"] == name]
        x = [step for course in name_courses for step in course["steps"]]
        y = [value for course in name_courses for value in course["estimates_nats"]]
        traces.append(curve(x, y, name, MARKS[name][0]))
        rows += [
            [name, number(course["true_nats"], 2), number(course["estimates_nats"][-1])] for course in name_courses
        ]
    last = max(steps[-1] for steps in level_steps.values())
    traces.append(_ceiling(setting, 0, last))
    return Chart(
        title=f"{_title(setting)}: while the critic trains",
        caption="Estimates on training batches, as means over blocks of steps; each estimator has the critic that was "
        "trained for it. The true information rises in steps. Table: the last block at each information.",
        alt=f"Line chart of estimates over {last:.0f} training steps for {_title(setting)}, the truth rising from "
        f"{min(level_steps):.1f} to {max(level_steps):.1f} nats.",
        traces=traces,
        layout=layout(
            460, xaxis=axis("training step"), yaxis=axis("estimate (nats)", range=[-0.5, 1.5 * max(level_steps)])
        ),
        table=Table(["estimator", "true (nats)", "last block (nats)"], rows),
    )


def _ceiling(setting: Row, first: int | float, last: int | float) -> Row:
    return curve([first, last], [math.log(setting["num_candidates"])] * 2, "ceiling log N", GREY, line_dash="dash")


def _table(rows: Sequence[Row]) -> Table:
    cells = []
    for row in rows:
        deviation = row["standard_deviation_nats"]
        variance = None if deviation is None else deviation**2
        mean = f"{number(row['mean_nats'])} ({number(row['standard_error_nats'])})"
        values = [number(row["true_nats"], 2), mean, number(row["bias_nats"]), number(variance)]
        cells.append([row["estimator"], row["side"], *values])
    return Table(["estimator", "bound", "true (nats)", "mean (standard error)", "bias", "variance"], cells)


def _title(setting: Row) -> str:
    return "{task}, D = {dim}, N = {num_candidates}, {critic} critic".format(**setting)
