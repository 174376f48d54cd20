"""The whole comparison on tones and levels, where what must come out is known."""

import json
from pathlib import Path

import numpy as np
import pytest

import cpc
from cpc.data.manifest import Manifest
from cpc.probes import Extraction, ProbeProtocol, SupervisedProtocol, format_report, probe_report

BOUND = {
    "schema": 1,
    "step": 7,
    "split": "valid",
    "strategy": "mixed",
    "mi_bound_nats": [1.5, None],
    "mi_ceiling_nats": [2.0, 2.0],
}
BRIEF = SupervisedProtocol(seconds=None, num_steps=2, batch_size=2)
QUICK = ProbeProtocol(min_steps=50, num_epochs=1, num_seeds=2)


@pytest.fixture
def model_folder(model: cpc.CPC, tmp_path: Path) -> Path:
    cpc.save_pretrained(model, tmp_path / "run" / "model", provenance={"step": 7, "held_out": [BOUND]})
    return tmp_path / "run"


@pytest.fixture
def extraction(cache_dir: Path) -> Extraction:
    return Extraction(cache_dir=cache_dir, progress=False)


def test_every_result_stands_beside_the_bound(
    model_folder: Path, corpus_folder: Path, extraction: Extraction, tmp_path: Path
) -> None:
    report = probe_report(
        model_folder,
        corpus_folder,
        ["phones", "speaker", "first"],
        features=("c", "z", "mfcc", "logmel"),
        protocol=QUICK,
        supervised=BRIEF,
        num_random_models=2,
        extraction=extraction,
        out=tmp_path / "probe.json",
    )
    assert json.loads((tmp_path / "probe.json").read_text()) == report
    names = ["majority", "random", "mfcc", "logmel", "cpc", "cpc_z", "supervised"]
    for task in ("phones", "speaker", "first"):
        results = report["tasks"][task]["results"]
        assert list(results) == names
        for result in results.values():
            low, high = result["accuracy_interval_percent"]
            assert low <= result["accuracy_percent"] <= high
            assert result["label_information_nats"] <= result["label_entropy_nats"]
            assert np.sum(result["confusion"]) == result["num_test"] * len(result["accuracy_percent_by_seed"])
    phones = report["tasks"]["phones"]["results"]
    assert phones["logmel"]["accuracy_percent"] > 85  # tones; frames at their borders hear two
    assert phones["majority"]["label_information_nats"] < 0.01
    assert phones["cpc"]["num_train"] == phones["supervised"]["num_train"] == 12 * 40
    assert len(phones["cpc"]["accuracy_percent_by_seed"]) == 2
    assert len(phones["random"]["accuracy_percent_by_seed"]) == 2
    assert report["tasks"]["speaker"]["protocol"]["test_split"] == "valid"
    assert report["tasks"]["first"]["results"]["cpc"]["num_test"] == 12
    assert report["bound"] == [BOUND]
    assert report["model"]["step"] == 7
    assert report["protocol"]["probe"]["learning_rate"] == 0.1
    assert report["protocol"]["features"]["cpc"]["dim"] == 10
    assert report["protocol"]["features"]["cpc_z"]["dim"] == 12
    assert report["protocol"]["supervised"]["num_steps_taken"] == {"phones": 2, "speaker": 2, "first": 2}

    table = format_report(report)
    assert "phones: 3 classes, split train -> test, every frame" in table
    assert "first: 3 classes, split train -> test, mean over the file" in table
    assert "held-out bound log N - L of the same weights (mixed, split valid)" in table
    assert "1.50    -" in table
    for name in names:
        assert table.count(f"  {name} ") == 3


def test_the_random_baseline_is_of_the_features_probed(
    model_folder: Path, corpus_folder: Path, extraction: Extraction
) -> None:
    report = probe_report(
        model_folder,
        corpus_folder,
        "speaker",
        features=("z",),
        baselines=("random",),
        protocol=QUICK,
        num_random_models=1,
        extraction=extraction,
        held_out=[],
    )
    assert list(report["tasks"]["speaker"]["results"]) == ["random_z", "cpc_z"]
    assert report["bound"] == []
    assert "measure it with cpc evaluate" in format_report(report)


def test_the_encoder_is_not_trained(model_folder: Path, corpus_folder: Path, extraction: Extraction) -> None:
    before = (model_folder / "model" / "model.safetensors").read_bytes()
    reports = [
        probe_report(
            model_folder, corpus_folder, "phones", features=("c",), baselines=(), protocol=QUICK, extraction=extraction
        )
        for _ in range(2)
    ]
    assert (model_folder / "model" / "model.safetensors").read_bytes() == before
    assert reports[0]["tasks"] == reports[1]["tasks"]


def test_less_training_audio(model_folder: Path, corpus_folder: Path, extraction: Extraction) -> None:
    report = probe_report(
        model_folder,
        corpus_folder,
        "phones",
        features=("mfcc",),
        baselines=("supervised",),
        train_minutes=0.04,  # of 12 files with 0.4 s each
        protocol=QUICK,
        supervised=BRIEF,
        extraction=extraction,
    )
    results = report["tasks"]["phones"]["results"]
    assert results["mfcc"]["num_train"] == 6 * 40
    assert results["supervised"]["num_train"] == 12 * 40  # the baseline is as strong as the corpus makes it
    assert report["tasks"]["phones"]["protocol"]["num_train_files"] == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tasks": "colour"}, "no column 'colour'"),
        ({"tasks": "speaker", "test_split": "dev"}, "needs split 'dev'.*--test_split"),
        ({"tasks": "speaker", "baselines": ("chance",)}, "legal are majority, random, supervised"),
    ],
)
def test_mistakes_show_before_anything_is_computed(
    model_folder: Path, manifest: Manifest, arguments: dict, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cpc.probes.report.pack", lambda *_, **__: pytest.fail("packed"))
    with pytest.raises(ValueError, match=message):
        probe_report(model_folder, manifest, **arguments)
