"""The image quickstart, shortened: every stage runs, and the reports hold what they promise."""

import base64
import html
import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from PIL import Image

from cpc.candidates import reading_of
from cpc.checkpoint import build
from cpc.cli import main
from cpc.data.made import photographs
from cpc.probes.linear import ProbeProtocol
from cpc.quickstart import budget, images
from cpc.quickstart.charts import step_chart, training_chart

REPRESENTATIONS = ["majority", "random", "pixels", "hog", "cpc", "supervised"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `out` and `corpus` of a quickstart of six steps on three small photographs and the digits."""
    pytest.importorskip("skimage", reason="the extra 'image' is not installed")
    pytest.importorskip("plotly", reason="the extra 'dashboard' is not installed")
    folder = tmp_path_factory.mktemp("quickstart")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(photographs, "PHOTOGRAPHS", ("coins.png", "page.png", "text.png"))
        patch.setattr(photographs, "MOST_CROPS", {"train": 40, "valid": 30, "test": 20})
        patch.setattr(images, "SUPERVISED_SECONDS", 1.0)
        patch.setattr(budget, "MEASURING_SECONDS", 1e-3)
        patch.setattr(images, "PROBE", ProbeProtocol(num_epochs=1, min_steps=30, num_seeds=1))
        patch.setattr(images, "NUM_PICTURED", 30)
        small = {name: replace(recipe, batch_size=16) for name, recipe in images.RECIPES.items()}
        patch.setattr(images, "RECIPES", small)
        arguments = ["--out", str(folder / "out"), "--corpus", str(folder / "corpus"), "--steps", "6"]
        main(["quickstart", "--modality", "image", *arguments])
    return folder


@pytest.fixture(scope="module")
def report(finished: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((finished / "out" / "report.json").read_text())
    return content


@pytest.fixture(scope="module")
def page(finished: Path) -> str:
    return (finished / "out" / "report.html").read_text()


def test_the_report_holds_accuracies_with_intervals(report: dict[str, Any]) -> None:
    for name, num_classes in (("photographs", 3), ("digits", 10)):
        assert list(report[name]) == list(report[f"{name}_interval"]) == REPRESENTATIONS
        assert all(0 < accuracy <= 100 for accuracy in report[name].values())
        for representation, (low, high) in report[f"{name}_interval"].items():
            assert low <= report[name][representation] <= high
        assert report[name]["majority"] == pytest.approx(100 / num_classes, abs=1)
        assert report[name]["hog"] > report[name]["majority"] + 20  # not chance: probes were trained
        assert report["runs"][name]["num_classes"] == num_classes
        others = report["runs"][name]["other_readouts"]
        assert len(others) == 2 * len(images.RECIPES[name].others)
    assert report["runs"]["photographs"]["num_test_images"] == 60
    assert report["runs"]["digits"]["num_test_images"] == 539


def test_the_report_holds_the_bound_of_every_row_ahead(report: dict[str, Any], finished: Path) -> None:
    for name, recipe in images.RECIPES.items():
        run = report["runs"][name]
        assert run["num_train_steps"] == 6
        assert run["steps"] == [2, 3, 4, 5, 6] * len(recipe.directions)
        assert run["directions"] == [direction for direction in recipe.directions for _ in range(5)]
        assert run["negatives"] == run["bounds"][0]["strategy"] == "mixed"
        assert run["reading"] == run["bounds"][0]["reading"] == "in-sequence candidates, no bound on I(z; c)"
        assert run["bounds"][1]["strategy"] == "mixed_excluding"
        bounds = zip(run["mi_bound_nats"], run["mi_ceiling_nats"], strict=True)
        assert all(bound < ceiling for bound, ceiling in bounds)
        probed = json.loads((finished / "out" / name / "probe.json").read_text())
        assert probed["bound"] == run["bounds"]
        assert set(run["step_seconds"]) == {"bf16-mixed", "32-true"}
        assert run["precision"] == min(run["step_seconds"], key=run["step_seconds"].__getitem__)
        config = yaml.safe_load((finished / "out" / name / "config.yaml").read_text())
        assert config["trainer"]["precision"] == run["precision"]
        assert config["model"]["loss"]["init_args"]["compute"] == (
            "bf16" if run["precision"] == "bf16-mixed" else "float32"
        )
        assert probed["protocol"]["precision"] == ("bfloat16" if run["precision"] == "bf16-mixed" else "float32")
        supervised = probed["tasks"]["class"]["results"]["supervised"]
        assert report[f"{name}_num_steps"] == {"supervised": supervised["num_network_steps"]}
    assert report["seconds"]["total"] == pytest.approx(
        sum(seconds for stage, seconds in report["seconds"].items() if stage != "total"), abs=0.1
    )
    assert {"images", "pretrain", "bound", "probes", "pictures", "page"} < set(report["seconds"])


def test_the_page_has_a_section_for_everything_and_needs_nothing_else(page: str, report: dict[str, Any]) -> None:
    titles = [html.unescape(title) for title in re.findall("<h2>(.*?)</h2>", page)]
    of_each = [
        "log N - L over training, negatives: mixed",
        "log N - L over training, negatives: mixed_excluding",
        "log N - L and accuracy by prediction step, after training",
        "the patches",
        "nearest patches in z",
        "a map of contexts",
    ]
    of_both = [f"{name}: {title}" for name in ("Photographs", "Digits") for title in of_each]
    assert titles == ["What a linear probe reads from the features", *of_both, "How to read this"]
    assert len(set(re.findall(r'"(chart-\d+)"', page))) == 7
    sources = re.findall(r'<img[^>]*alt="([^"]{40,})"[^>]*src="([^"]*)"', page)
    assert len(sources) == page.count("<img ") == 6
    for _, source in sources:
        kind, _, content = source.partition(",")
        assert kind == "data:image/png;base64"
        with Image.open(io.BytesIO(base64.b64decode(content))) as image:
            assert min(image.size) > 100
    own = re.sub("<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r'(href|src|srcset|data|action)="(?!data:image/png)', own)
    assert "//" not in re.sub('base64,[^"]*', "", own)
    shown = dict(re.findall(r'<tr><th scope="row">(\w+)</th><td>([\d.]+) \[', page))
    words = ["majority", "random", "pixels", "HOG", "CPC", "supervised"]
    assert shown == {
        word: f"{report['photographs'][key]:.1f}" for word, key in zip(words, REPRESENTATIONS, strict=True)
    }
    precision = report["runs"]["photographs"]["precision"]
    facts = "3 classes, 120 training images, 60 test images, 7 x 7 patches of each, 6 training steps, trained in "
    assert facts + precision in page
    steps = report["photographs_num_steps"]["supervised"]
    assert re.search(rf'<th scope="row">supervised</th><td>[^<]*\], {steps} steps</td>', page)
    assert "valid splits" in report["recipe_chosen_on"]
    assert html.escape(report["recipe_chosen_on"]) in page


def test_pictures_lie_beside_the_run(finished: Path) -> None:
    for name in images.RECIPES:
        for picture in ("patches.png", "neighbours.png", "map.png"):
            assert (finished / "out" / name / picture).is_file()


def test_a_finished_quickstart_is_left_alone(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(
            ["quickstart", "--modality", "image", "--out", str(finished / "out"), "--corpus", str(finished / "corpus")]
        )
    assert "already holds a quickstart: name another folder with --out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("modality", "left"),
    [("image", ["photographs"]), ("image", ["photographs", "digits"]), ("audio", ["config.yaml", "checkpoints"])],
)
def test_what_an_interrupted_quickstart_left_is_named(
    modality: str, left: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [*left, "notes.txt"]:
        (tmp_path / name).mkdir()
    with pytest.raises(SystemExit):
        main(["quickstart", "--modality", modality, "--out", str(tmp_path), "--corpus", str(tmp_path / "corpus")])
    message = capsys.readouterr().err
    assert f"remove {', '.join(str(tmp_path / name) for name in left)} to begin again" in message
    assert "notes.txt" not in message
    assert not (tmp_path / "corpus").exists()


def test_the_model_of_a_recipe_skips_the_rows_that_overlap() -> None:
    for recipe in images.RECIPES.values():
        config = images._config(recipe, Path("run"), Path("images.npz"), 0, 1, budget.FLOAT32)
        encoder = build(config["model"]["encoder"])
        assert config["model"]["loss"]["init_args"]["skip_steps"] == encoder.overlapping_rows == 1
        assert encoder.grid == recipe.grid


@pytest.mark.parametrize(("missing", "extra"), [("skimage", "image"), ("plotly.offline", "dashboard")])
def test_a_missing_extra_is_named_before_anything_starts(
    missing: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("skimage", "plotly.offline"):
        monkeypatch.setitem(sys.modules, module, None if module == missing else ModuleType(module))
    with pytest.raises(SystemExit) as exit_:
        main(
            ["quickstart", "--modality", "image", "--out", str(tmp_path / "out"), "--corpus", str(tmp_path / "corpus")]
        )
    assert exit_.value.code == 2
    message = capsys.readouterr().err
    assert message.startswith(f"cpc: error: the quickstart needs {missing.partition('.')[0]}")
    assert f"cpc[{extra}]" in message
    assert list(tmp_path.iterdir()) == []


def test_each_modality_has_a_corpus_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from cpc.quickstart import run

    asked = []
    monkeypatch.setattr(images, "image_quickstart", lambda *places, **_: asked.append(("image", *places)))
    monkeypatch.setattr(run, "quickstart", lambda *places, **_: asked.append(("audio", *places)))
    for arguments in ([], ["--modality", "image"], ["--modality", "image", "--corpus", "mine"]):
        main(["quickstart", *arguments])
    assert asked == [
        ("audio", Path("runs/quickstart"), Path("data/quickstart_speech")),
        ("image", Path("runs/image_quickstart"), Path("data/embedded_images")),
        ("image", Path("runs/image_quickstart"), Path("mine")),
    ]


def test_an_unknown_modality_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["quickstart", "--modality", "text"])
    assert exit_.value.code == 2
    assert "invalid choice: 'text' (choose from" in capsys.readouterr().err


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
        "reading": reading_of(strategy, on_grid=True),
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
