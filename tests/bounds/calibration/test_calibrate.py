"""Tests of the grid, the written files, the figure, and the training of critics."""

import json
import math
from pathlib import Path

import pytest
import torch

from cpc.bounds.calibration import training
from cpc.bounds.calibration.calibrate import calibrate, estimates_figure
from cpc.bounds.calibration.training import Measured, measure_exact, train, trainable
from cpc.bounds.estimators import ESTIMATORS
from cpc.bounds.tasks import make_task
from cpc.cli import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("calibration")
    options = "--tasks gaussian uniform discrete --mi 6 1 --dim 2 --num_candidates 8 --steps 3 --num_matrices 4"
    main(["calibrate", *options.split(), "--out", str(out)])
    return out


def test_every_reachable_point_has_a_row(folder: Path) -> None:
    report = json.loads((folder / "calibration.json").read_text())
    found = {(row["task"], row["critic"], row["estimator"], round(row["true_nats"], 6)) for row in report["rows"]}
    reached = [("gaussian", 1.0), ("gaussian", 6.0), ("uniform", 1.0), ("uniform", 6.0), ("discrete", 1.0)]
    trained = [name for name in ESTIMATORS if name != "leave_one_out"]
    assert found == {
        (task, critic, name, information)
        for task, information in reached
        for critic, names in (("exact", list(ESTIMATORS)), ("separable", trained))
        for name in names
    }
    assert len(found) == len(report["rows"])
    infinite = [row for row in report["rows"] if row["mean_nats"] is None]
    assert {(row["task"], row["critic"]) for row in infinite} == {("uniform", "exact")}


def test_the_protocol_stands_beside_the_figures(folder: Path) -> None:
    report = json.loads((folder / "calibration.json").read_text())
    assert report["tasks"] == ["gaussian", "uniform", "discrete"]
    assert (report["estimators"], report["critics"]) == (list(ESTIMATORS), ["exact", "separable"])
    assert (report["dims"], report["nums_candidates"], report["mi"]) == ([2], [8], [1.0, 6.0])
    constants = {"learning_rate": 1e-3, "most_gradient_norm": 10.0, "interpolated_alpha": 0.01, "smile_clip": 5.0}
    constants |= {"mine_decay": 0.99, "anchor_weight": 1.0, "student_degrees_of_freedom": 5.0}
    assert report["constants"] == constants
    (left_out,) = report["left_out"]
    assert "discrete" in left_out
    assert (folder / "calibration.png").read_bytes().startswith(b"\x89PNG")
    assert report["diverged"] == []


def test_what_diverged_is_on_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "LEARNING_RATE", 1e9)
    options = {"estimators": ["nwj"], "critics": ["exact", "separable"], "mi": [1.0], "dim": [2]}
    report = calibrate(tmp_path, tasks=["gaussian"], num_candidates=[8], steps=20, num_matrices=2, **options)
    (diverged,) = report["diverged"]
    assert diverged.startswith("separable critic, N = 8: the objective of nwj is")


def test_bias_and_variance_of_given_estimates() -> None:
    found = Measured.of([torch.tensor(v) for v in (1.0, 2.0, 3.0, 4.0)], true_nats=2.0)
    assert found.mean_nats == 2.5
    assert found.bias_nats == 0.5
    assert found.standard_deviation_nats == pytest.approx(math.sqrt(5 / 3))
    assert found.standard_error_nats == pytest.approx(math.sqrt(5 / 3) / 2)


@pytest.mark.usefixtures("unchecked_types")  # of 400 matrices
def test_exact_critics_lie_on_their_side() -> None:
    """In the mean over 400 matrices of 64, at 2 nats: below, above, or for DV above by Jensen."""
    task, generator = make_task("gaussian", 2.0, 5), torch.Generator().manual_seed(0)
    found = measure_exact(task, ESTIMATORS, 64, 400, generator)
    for name, each in found.items():
        if ESTIMATORS[name].side == "lower":
            assert each.bias_nats < 3 * each.standard_error_nats
        if ESTIMATORS[name].side == "upper":
            assert each.bias_nats > -3 * each.standard_error_nats
    assert found["info_nce"].bias_nats < -5 * found["info_nce"].standard_error_nats  # N is small
    assert found["leave_one_out"].bias_nats > 5 * found["leave_one_out"].standard_error_nats
    assert found["dv"].mean_nats > found["nwj"].mean_nats
    assert abs(found["anchor"].bias_nats) < 3 * found["anchor"].standard_error_nats
    assert found["goodness_of_fit"].bias_nats > 5 * found["goodness_of_fit"].standard_error_nats


@pytest.mark.usefixtures("unchecked_types")  # of hundreds of equal calls
@pytest.mark.parametrize(("critic", "short_nats"), [("concatenated", 0.3), ("bilinear", 0.45)])
def test_a_trained_critic_learns_and_stays_below_the_exact_one(critic: str, short_nats: float) -> None:
    """InfoNCE on correlated Gaussians: near the exact critic (x^T W y less so), not above it by 3 standard errors."""
    task = make_task("gaussian", 1.0, 2)
    (level,) = train([task], ["info_nce"], critic, 48, 200, 60, seed=0)
    found = level["info_nce"]
    exact = measure_exact(task, ["info_nce"], 48, 200, torch.Generator().manual_seed(1))["info_nce"]
    error = math.hypot(found.standard_error_nats, exact.standard_error_nats)
    assert found.mean_nats < exact.mean_nats + 3 * error
    assert found.mean_nats > exact.mean_nats - short_nats


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize("names", trainable(list(ESTIMATORS)))
def test_every_objective_teaches(names: list[str]) -> None:
    task = make_task("gaussian", 1.0, 2)
    (level,) = train([task], names, "separable", 32, 150, 60, seed=0)
    for name in names:
        found = level[name]
        assert 0.4 < found.mean_nats
        if ESTIMATORS[name].side == "lower":
            assert found.mean_nats < 1 + 3 * found.standard_error_nats


def test_training_is_the_seeds() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    runs = [list(train([make_task("cubic", 1.0, 2)], ["dv"], "separable", 8, 5, 4, seed)) for seed in (0, 0, 1)]
    assert runs[0] == runs[1] != runs[2]
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"critics": ["knn"]}, "critics`='knn' is not one of exact, separable"),
        ({"num_candidates": [16, 1]}, "`num_candidates`=1 must be at least 2"),
        ({"tasks": ["discrete"], "dim": [1], "mi": [4.0]}, "the tasks discrete reach none of"),
        ({"critics": ["separable"], "estimators": ["leave_one_out"]}, "leave_one_out needs the exact critic"),
    ],
)
def test_mistakes(options: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        calibrate(tmp_path / "new", **options)
    assert not (tmp_path / "new").exists()


def a_row(critic: str, estimator: str, true_nats: float, mean: float | None) -> dict:
    row = {"task": "gaussian", "dim": 20, "num_candidates": 16, "critic": critic, "estimator": estimator}
    return row | {"true_nats": true_nats, "mean_nats": mean, "standard_deviation_nats": 0.5}


def test_each_setting_is_a_panel_with_its_estimates_the_truth_and_the_ceiling() -> None:
    rows = [a_row("exact", "info_nce", 2.0, 1.5), a_row("exact", "info_nce", 4.0, 2.0), a_row("exact", "dv", 2.0, None)]
    exact, trained = estimates_figure([*rows, a_row("separable", "nwj", 2.0, 1.3)]).axes
    assert [axes.get_title() for axes in (exact, trained)] == [
        f"gaussian, D = 20, N = 16, {critic} critic" for critic in ("exact", "separable")
    ]
    lines = {tuple(map(float, line.get_ydata())) for line in exact.get_lines()}
    assert {(1.5, 2.0), (2.0, 4.0), (math.log(16),) * 2} <= lines
    assert {text.get_text() for text in exact.get_legend().get_texts()} >= {"info_nce", "truth", "log N"}
