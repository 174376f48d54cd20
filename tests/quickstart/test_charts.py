"""Charts of grids and of classes, whose records have directions and another ceiling."""

from typing import Any

import pytest

from cpc.candidates import interpretation
from cpc.pages.charts import training_chart


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


def test_steps_with_gaps_stand_at_their_k() -> None:
    record = a_record(100) | {"steps": [1, 3, 9, 14], "directions": [""] * 4}
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
    chart = training_chart([record])
    assert chart.title == "H - L over training, objective: full_softmax"
    assert chart.table.header == ["training step", "k = 1", "ceiling H"]
    assert [label["text"] for label in chart.layout["annotations"]][-1] == "ceiling H = 4.80"
    assert "log N" not in f"{chart.title} {chart.caption} {chart.alt} {chart.layout} {chart.traces}"
