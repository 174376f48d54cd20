"""The image quickstart, shortened: every stage runs, and the reports hold what they promise."""

import base64
import html
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from cpc.cli import main
from cpc.config.description import build
from cpc.data.synthetic import photographs
from cpc.quickstart import images, time_budget

pytestmark = pytest.mark.slow  # a minute; the engine itself is tested on prose

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
        patch.setattr(time_budget, "MEASURING_SECONDS", 1e-3)
        patch.setattr(images, "NUM_FIGURE_IMAGES", 30)
        patch.setattr(images, "BATCH_SIZE", 16)
        for study in images.RECIPE.studies.values():
            patch.setitem(study.probe, "supervised_seconds", 1.0)
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
        assert list(others) == ["cpc_c", "random_c"]
    assert report["runs"]["photographs"]["num_test_images"] == 60
    assert report["runs"]["digits"]["num_test_images"] == 539


def test_the_report_holds_the_bound_of_every_row_ahead(report: dict[str, Any], finished: Path) -> None:
    for name in images.RECIPE.studies:
        run = report["runs"][name]
        assert run["num_train_steps"] == 6
        assert run["steps"] == [2, 3, 4, 5, 6]
        assert run["directions"] == ["down"] * 5
        assert run["negatives"] == run["bounds"][0]["strategy"] == "mixed"
        assert run["reading"] == run["bounds"][0]["reading"] == "in-sequence candidates, not a bound on I(z; c)"
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
    assert titles == ["Accuracy of a linear probe on the features", *of_both, "How to read this"]
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
    run = report["runs"]["photographs"]
    others = ", ".join(f"{name} {accuracy:.1f} %" for name, accuracy in run["other_readouts"].items())
    facts = "3 classes, 120 training images, 60 test images, 7 x 7 patches of each, other features "
    assert f"{facts}{others}, 6 training steps, trained in {run['precision']}" in page
    steps = report["photographs_num_steps"]["supervised"]
    assert re.search(rf'<th scope="row">supervised</th><td>[^<]*\], {steps} steps</td>', page)
    assert "valid splits" in report["recipe_chosen_on"]
    assert html.escape(report["recipe_chosen_on"]) in page


def test_pictures_lie_beside_the_run(finished: Path) -> None:
    for name in images.RECIPE.studies:
        for picture in ("patches.png", "neighbours.png", "map.png"):
            assert (finished / "out" / name / picture).is_file()


def test_a_finished_quickstart_is_left_alone(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(
            ["quickstart", "--modality", "image", "--out", str(finished / "out"), "--corpus", str(finished / "corpus")]
        )
    assert "already holds a quickstart: name another folder with --out" in capsys.readouterr().err


def test_the_model_of_a_recipe_skips_the_rows_that_overlap() -> None:
    for study in images.RECIPE.studies.values():
        config = study.config(Path("images.npz"), 0, time_budget.FLOAT32)
        encoder = build(config["model"]["encoder"])
        assert config["model"]["loss"]["init_args"]["skip_steps"] == encoder.overlapping_rows == 1
