"""Charts of grids and of classes, whose records have directions and another ceiling."""

from typing import Any

import pytest

from cpc.candidates import interpretation
from cpc.pages.charts import step_chart, training_chart


def a_record(step: int, strategy: str = "mixed") -> dict[str, Any]:
    bounds = [step / 100 + column for column in range(4)]
    return {
        "step": step,
        "split": "valid",
        "strategy": strategy,
        "steps": [2, 3, 2, 3],
        "directions": ["down", "down", "left", "left"],
        "mi_bound_nats": bounds,
        "standard_error_nats": [0.1] * 4,
        "mi_ceiling_nats": [7.0] * 4,
        "num_candidates": [1097.0] * 4,
        "accuracy": [0.4, 0.3, 0.2, 0.1],
        "reading": interpretation(strategy, on_grid=True) if strategy != "full_softmax" else "",
    }


def test_charts_tell_directions_apart() -> None:
    over_training = training_chart([a_record(0), a_record(100)])
    assert over_training.table.header[1:5] == ["down, k = 2", "down, k = 3", "left, k = 2", "left, k = 3"]
    assert [trace["name"] for trace in over_training.traces[:4]] == ["down 2", "down 3", "left 2", "left 3"]
    assert over_training.traces[3]["y"] == pytest.approx([3.0, 4.0])
    by_step = step_chart([a_record(100), a_record(100, "mixed_excluding")])
    points = [trace for trace in by_step.traces if trace["mode"] == "markers" and "yaxis" not in trace]
    assert [trace["customdata"] for trace in points] == [[2, 3]] * 4
    assert [trace["y"] for trace in points] == [[1.0, 2.0], [3.0, 4.0]] * 2
    assert [trace["marker_symbol"] for trace in points] == ["triangle-down", "triangle-left"] * 2
    assert len({trace["marker_color"] for trace in points}) == 2  # of a strategy one
    places = [place for trace in points for place in trace["x"]]
    assert len(set(places)) == 8
    assert all(abs(place - k) < 0.5 for trace in points for place, k in zip(trace["x"], (2, 3), strict=True))
    assert [row[0] for row in by_step.table.rows][:3] == [
        "mixed, down, k = 2",
        "mixed, down, k = 3",
        "mixed, left, k = 2",
    ]
    assert "lower bound on I(z; c) plus up to log(H / (H - k))" in points[-1]["name"]
    assert "rows of patches ahead" in by_step.layout["xaxis"]["title_text"]


def test_steps_with_gaps_stand_at_their_k() -> None:
    record = a_record(100) | {"steps": [1, 3, 9, 14], "directions": [""] * 4}
    by_step = step_chart([record])
    assert by_step.layout["xaxis"]["tickvals"] == [1, 3, 9, 14]
    points = next(trace for trace in by_step.traces if trace["mode"] == "markers")
    assert points["x"] == pytest.approx([1, 3, 9, 14])
    assert [row[0] for row in by_step.table.rows] == [f"mixed, k = {k}" for k in (1, 3, 9, 14)]
    assert training_chart([record]).table.header[1:5] == ["k = 1", "k = 3", "k = 9", "k = 14"]


def test_charts_of_classes_speak_of_the_entropy() -> None:
    record = a_record(100, "full_softmax") | {
        "steps": [1],
        "directions": [""],
        "mi_bound_nats": [0.7],
        "mi_ceiling_nats": [4.8],
        "num_candidates": [1000.0],
        "accuracy": [0.2],
        "standard_error_nats": [0.04],
        "reading": "entropy of the classes - cross-entropy",
    }
    over_training, by_step = training_chart([record]), step_chart([record])
    assert over_training.title == "H - L over training, objective: full_softmax"
    assert over_training.table.header == ["training step", "k = 1", "ceiling H"]
    assert [label["text"] for label in over_training.layout["annotations"]][-1] == "ceiling H = 4.80"
    assert by_step.table.header[:3] == ["objective, step", "H - L (nats)", "H (nats)"]
    assert by_step.table.rows == [["full_softmax, k = 1", "0.700 (0.040)", "4.800", "1000.00", "20.00", "0.10"]]
    for chart in (over_training, by_step):
        assert "log N" not in f"{chart.title} {chart.caption} {chart.alt} {chart.layout} {chart.traces}"
