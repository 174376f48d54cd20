"""The picture of label efficiency: points lie where their numbers say."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cpc.probes.report import _draw_curves
from cpc.probes.tables import plot_label_efficiency

CURVE = {
    "shares": [0.01, 0.1, 1.0],
    "num_labels": [20, 200, 2000],
    "accuracy_percent": {"cpc": [60.0, 70.0, 80.0], "supervised": [20.0, 50.0, 90.0]},
}


def test_points_stand_at_their_accuracies_and_numbers_of_labels(tmp_path: Path) -> None:
    figure = plot_label_efficiency(CURVE, "title")
    (axes,) = figure.axes
    lines = {line.get_label(): line for line in axes.lines}
    assert list(lines) == ["supervised", "cpc"]  # the best with all labels first
    for name, line in lines.items():
        assert list(line.get_ydata()) == CURVE["accuracy_percent"][name]  # type: ignore[index]
        across, _ = axes.transData.transform(line.get_xydata()).T
        assert across[1] - across[0] == pytest.approx(across[2] - across[1])  # a logarithmic axis
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1 %\n20", "10 %\n200", "100 %\n2000"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(lines)
    assert lines["cpc"].get_color() != lines["supervised"].get_color()
    figure.savefig(tmp_path / "curve.png")
    with Image.open(tmp_path / "curve.png") as picture:
        assert np.asarray(picture).std() > 5


def test_one_share_and_equal_accuracies_are_drawn_too(tmp_path: Path) -> None:
    curve = {"shares": [1.0], "num_labels": [50], "accuracy_percent": {"cpc": [60.0], "random": [60.0]}}
    figure = plot_label_efficiency(curve, "title")
    assert [line.get_label() for line in figure.axes[0].lines] == ["cpc", "random"]
    figure.savefig(tmp_path / "curve.png")


def test_the_name_of_a_task_is_not_a_folder(tmp_path: Path) -> None:
    curve = {"shares": [1.0], "num_labels": [50], "accuracy_percent": {"cpc": [60.0]}}
    task = {"protocol": {"classes": ["a", "b"], "num_test": 9, "unit": "file"}, "label_efficiency": curve}
    _draw_curves({"tasks": {"first": task, "age/sex": task}}, tmp_path / "probe.json")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["label_efficiency_age_sex.png", "label_efficiency_first.png"]


def test_names_of_users_are_no_mathematics(tmp_path: Path) -> None:
    curve = {
        "shares": [1.0],
        "num_labels": [50],
        "accuracy_percent": {r"$\frac$": [60.0], "_z": [1.0], "\udcff": [2.0]},
    }
    figure = plot_label_efficiency(curve, r"of $\nothing$")
    figure.savefig(tmp_path / "curve.png")
    assert len(figure.legends[0].get_texts()) == 3
