"""Tests that charts show the measured values."""

import math

from cpc.bounds.calibration.page import course_chart, estimate_chart

PLACE = {"task": "gaussian", "dim": 20, "num_candidates": 16, "critic": "exact"}


def a_row(estimator: str, true_nats: float, mean: float | None) -> dict:
    row = PLACE | {"estimator": estimator, "side": "lower", "true_nats": true_nats, "mean_nats": mean}
    row |= {"standard_error_nats": 0.1, "bias_nats": None if mean is None else mean - true_nats}
    return row | {"standard_deviation_nats": 0.5, "gaussian_optimum_nats": 1.4}


def test_estimates_bias_and_variance() -> None:
    rows = [a_row("info_nce", 4.0, 2.0), a_row("info_nce", 2.0, 1.5), a_row("dv", 2.0, None)]
    chart = estimate_chart(rows)
    info_nce_traces = {trace.get("yaxis", "y"): trace for trace in chart.traces if trace["name"] == "info_nce"}
    assert info_nce_traces["y"]["x"] == [2.0, 4.0]
    assert info_nce_traces["y"]["y"] == [1.5, 2.0]
    assert info_nce_traces["y"]["error_y"]["array"] == [0.5, 0.5]
    assert info_nce_traces["y2"]["y"] == [-0.5, -2.0]
    assert info_nce_traces["y3"]["y"] == [0.25, 0.25]
    (ceiling,) = [trace for trace in chart.traces if trace["name"] == "ceiling log N"]
    assert ceiling["y"] == [math.log(16)] * 2
    assert chart.table.rows[2] == ["dv", "lower", "2.00", "n/a (0.100)", "n/a", "0.250"]


def test_trained_critics_stand_beside_the_exact_one() -> None:
    rows, exact = [a_row("info_nce", 2.0, 1.1), a_row("nwj", 2.0, 1.3)], [a_row("info_nce", v, v) for v in (2.5, 2.0)]
    (line,) = [t for t in estimate_chart(rows, exact).traces if t["name"] == "InfoNCE, exact critic"]
    assert (line["x"], line["y"]) == ([2.0, 2.5], [2.0, 2.5])
    assert not [t for t in estimate_chart(rows).traces if t["name"] == "InfoNCE, exact critic"]


def test_the_course_of_training() -> None:
    courses = [
        PLACE | {"estimator": "nwj", "true_nats": 2.0, "steps": [0.0, 4.0], "estimates_nats": [0.1, 1.2]},
        PLACE | {"estimator": "nwj", "true_nats": 4.0, "steps": [8.0], "estimates_nats": [None]},
    ]
    chart = course_chart(courses)
    (line,) = [trace for trace in chart.traces if trace["name"] == "nwj"]
    assert (line["x"], line["y"]) == ([0.0, 4.0, 8.0], [0.1, 1.2, None])
    assert [trace["y"] for trace in chart.traces if trace["name"] == "truth"] == [[2.0, 2.0], [4.0, 4.0]]
    assert chart.table.rows == [["nwj", "2.00", "1.200"], ["nwj", "4.00", "n/a"]]
