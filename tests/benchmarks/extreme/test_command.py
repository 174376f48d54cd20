import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.extreme.__main__ import SAMPLERS, main
from benchmarks.extreme.points import write_extreme
from benchmarks.extreme.word_classes import WordClasses
from cpc.losses import OBJECTIVES


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("extreme")
    problem = WordClasses(40, 60, words_per_class=5, noise=0.2)
    for split, num_points in (("train", 400), ("test", 100)):
        points = problem.draw(num_points, np.random.default_rng(num_points))
        write_extreme(points, folder / f"words_{split}.xc.txt")
    return folder


@pytest.fixture(autouse=True)
def _no_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring the processor would take longer than all of the training here."""
    monkeypatch.setattr("benchmarks.extreme.__main__.machine_state", lambda **_: {})


def figures_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, dict[str, float]]]:
    main([*arguments, "--dim", "16", "--temperature", "0.1", "--num-frequencies", "20"])
    return json.loads(capsys.readouterr().out.splitlines()[-1])["figures"]


def test_every_sampler_learns_the_classes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = figures_of(capsys, "--data", str(folder), "--seeds", "1", "--samplers", *SAMPLERS)
    assert figures["by frequency"]["p@1"]["mean"] < 15
    for name in SAMPLERS:
        assert figures[name]["p@1"]["mean"] > 60, name
        assert figures[name]["test_nats"]["mean"] < 3, name  # log 40 is 3.7
        assert figures[name]["p@1"].keys() == {"mean"}


def test_samplers_learn_from_updates_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    never = ("--refresh-steps", "1000000")
    of_some = ("--data", str(folder), "--seeds", "1", "--samplers", "exp", "two_level", "uniform", *never)
    stale, updated = (figures_of(capsys, *of_some, *flag) for flag in ((), ("--updates-between",)))
    for name in ("exp", "two_level"):
        assert updated[name]["test_nats"]["mean"] < stale[name]["test_nats"]["mean"] - 0.05, name
    assert updated["uniform"]["test_nats"] == stale["uniform"]["test_nats"]


@pytest.mark.parametrize("objective", [name for name in OBJECTIVES if "full" not in name])
def test_every_objective_trains(folder: Path, capsys: pytest.CaptureFixture[str], objective: str) -> None:
    figures = figures_of(
        capsys, "--data", str(folder), "--seeds", "2", "--samplers", "full", "uniform", "--objective", objective,
        "--num-epochs", "2", "--reduction", "pick_one_label",
    )  # fmt: skip
    for name in ("full", "uniform"):
        assert figures[name]["p@1"]["mean"] > figures["by frequency"]["p@1"]["mean"] + 15, name
        assert figures[name]["p@1"]["standard_error"] >= 0


def test_no_figure_beats_the_best_possible_one(capsys: pytest.CaptureFixture[str]) -> None:
    options = "--synthetic 50 --synthetic-points 2000 --seeds 1 --samplers two_level"
    figures = figures_of(capsys, *options.split())
    best, found, frequent = (figures[name]["p@1"]["mean"] for name in ("best possible", "two_level", "by frequency"))
    assert frequent + 20 < found < best + 3  # two thousand test points: 3 % are three standard errors


def test_folders_without_points(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"one file NAME_train\.xc\.txt, but has 0: give --data"):
        main(["--data", str(tmp_path)])
