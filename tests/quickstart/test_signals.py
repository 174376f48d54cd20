"""The quickstart of signals, shortened: recordings of people that ship with a package, by folds over people."""

import json
from pathlib import Path
from typing import Any

import pytest

from cpc.cli import main
from cpc.quickstart import signals, time_budget

pytestmark = pytest.mark.slow  # a minute; the engine itself is tested on prose


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("plotly", reason="the extra 'dashboard' is not installed")
    pytest.importorskip("seglearn", reason="the extra 'signals' is not installed")
    folder = tmp_path_factory.mktemp("quickstart")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time_budget, "MEASURING_SECONDS", 1e-3)
        patch.setitem(signals.RECIPE.studies["smartwatch"].probe, "supervised_seconds", 1.0)
        places = ["--out", str(folder / "out"), "--corpus", str(folder / "corpus")]
        main(["quickstart", "--modality", "signals", *places, "--steps", "20"])
    return folder


def test_the_report_has_every_baseline_by_folds_over_people(finished: Path) -> None:
    report: dict[str, Any] = json.loads((finished / "out" / "report.json").read_text())
    assert (report["num_people"], report["num_classes"]) == (10, 7)
    probed = json.loads((finished / "out" / "smartwatch" / "probe.json").read_text())["tasks"]["label"]
    assert (probed["protocol"]["folds"], probed["protocol"]["num_folds"]) == ("group", 5)
    assert set(probed["results"]) == {"majority", "hand", "random", "random_stream", "cpc", "cpc_stream", "supervised"}
    accuracy = {name: result["accuracy_percent"] for name, result in probed["results"].items()}
    assert accuracy["majority"] < 25 < min(value for name, value in accuracy.items() if name != "majority")


def test_the_page_names_what_it_shows(finished: Path) -> None:
    page = (finished / "out" / "report.html").read_text()
    for text in ("hand-made", "CPC isolated", "CPC stream", "supervised", "10 people", "7 exercises"):
        assert text in page
