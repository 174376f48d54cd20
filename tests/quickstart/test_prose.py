"""The quickstart of text, shortened: no probes, and what is compared is perplexity."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from cpc.cli import main
from cpc.data.text.lines import Text
from cpc.quickstart import prose, time_budget
from cpc.quickstart.time_budget import FLOAT32

CONFIG = Path(__file__).parents[2] / "configs/text/cpu_small.yaml"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("plotly", reason="the extra 'dashboard' is not installed")
    folder = tmp_path_factory.mktemp("quickstart")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time_budget, "MEASURING_SECONDS", 1e-3)
        places = ["--out", str(folder / "out"), "--corpus", str(folder / "corpus")]
        main(["quickstart", "--modality", "text", *places, "--steps", "20"])
    return folder


@pytest.fixture(scope="module")
def report(finished: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((finished / "out" / "report.json").read_text())
    return content


def test_the_report_holds_perplexity_and_what_it_certifies(report: dict[str, Any]) -> None:
    run = report["runs"]["prose"]
    (measured,) = run["bounds"]
    assert run["num_train_steps"] == 20
    assert (run["negatives"], measured["split"], run["steps"]) == ("full_softmax", "test", [1])
    assert measured["perplexity"] == pytest.approx([math.exp(measured["loss_nats"][0])])
    assert measured["perplexity"][0] < 1000  # it has learnt something: frequencies at least
    assert run["mi_bound_nats"][0] == pytest.approx(run["mi_ceiling_nats"][0] - measured["loss_nats"][0])
    assert 4 < run["mi_ceiling_nats"][0] < 5
    assert set(run["step_seconds"]) == {run["precision"]} == {"32-true"}
    assert "test split" in report["recipe_chosen_on"]
    assert list(report["seconds"]) == ["prose", "pretrain", "bound", "page", "total"]


def test_the_page_shows_it_beside_what_needs_no_context(finished: Path, report: dict[str, Any]) -> None:
    page = (finished / "out" / "report.html").read_text()
    measured = report["runs"]["prose"]["bounds"][0]
    for name, nats in (
        ("uniform", math.log(1000)),
        ("unigram", measured["mi_ceiling_nats"][0]),
        ("CPC", measured["loss_nats"][0]),
    ):
        assert f'<th scope="row">{name}</th><td>{math.exp(nats):.1f}</td><td>{nats:.3f}</td>' in page
    assert "H - L over training, objective: full_softmax" in page
    assert "Prose: 20 training steps, trained in 32-true." in page


def test_the_recipe_is_that_of_the_config() -> None:
    shipped = yaml.safe_load(CONFIG.read_text())
    own = prose.config(Path("embedded"), 0, FLOAT32)
    study = prose.RECIPE.studies["prose"]
    assert study.most_steps == shipped["trainer"].pop("max_steps")
    assert shipped.pop("trainer") == {"gradient_clip_val": 1.0}
    assert own == shipped


def test_the_prose_is_split_as_the_embedded_one(finished: Path, tmp_path: Path) -> None:
    own, embedded = (
        Text(source, valid_share=0.1, test_share=0.1) for source in (finished / "corpus/embedded", "embedded")
    )
    for split in ("train", "valid", "test"):
        assert list(own.lines(split)) == list(embedded.lines(split))
    (tmp_path / "embedded").write_text("Other prose.")
    with pytest.raises(ValueError, match="holds other prose than this Python ships with: remove it"):
        prose.RECIPE.make(tmp_path, 0)
