"""The self-checks of a model: grids, tables, and the file that the monitor reads."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import cpc
from cpc.checkpoint import save_pretrained
from cpc.contexts import PixelCNN
from cpc.data import Audio
from cpc.data.batch import Batch
from cpc.data.store.records import read_records
from cpc.encoders import TinyTrunk
from cpc.encoders.patches import PatchEncoder
from cpc.evaluation import HeldOutReadings, SelfChecks, evaluate, self_checks_table
from cpc.evaluation.self_checks import append_to_run
from cpc.losses import Contrastive, EvalProtocol
from cpc.model import CPC
from cpc.predictors import Bilinear

PROTOCOL = EvalProtocol("mixed_excluding", None)
DATA = Audio(manifest="not there any more", window_samples=1600, batch_size=4)


def grid_checks(num_images: int) -> tuple[SelfChecks, HeldOutReadings]:
    """Checks and readings of an untrained model on six batches of 24 x 24 images, whose columns share an id."""
    torch.manual_seed(0)
    encoder = PatchEncoder(TinyTrunk(8, 1, (4,), (8,)), patch_size=8, stride=4)
    model = CPC(
        encoder, PixelCNN(8, 2, 8, ("down", "right")), Bilinear(2), Contrastive("mixed_excluding", skip_steps=1)
    )
    checks = SelfChecks(model, ["info_nce"], [PROTOCOL, EvalProtocol("mixed", None)], seed=0, keeps_groups=False)
    generator = torch.Generator().manual_seed(0)
    readings = HeldOutReadings(model, ["info_nce"], {PROTOCOL: generator})
    for _ in range(6):
        x = torch.randn(num_images, 1, 24, 24, generator=generator)
        with torch.no_grad():
            output = model(x)
        checks(PROTOCOL, output, Batch.of(x))
        checks(EvalProtocol("mixed", None), output, Batch.of(x))
        readings(PROTOCOL, output, Batch.of(x))
    return checks, readings


def test_directions_of_a_grid_follow_one_another() -> None:
    checks, readings = grid_checks(4)
    records = checks.records(PROTOCOL, "test")
    assert checks.records(EvalProtocol("mixed", None), "test") == []
    expected = readings.record(PROTOCOL, "info_nce", "test")
    for record in records:
        assert record["directions"] == ["down", "down", "right", "right"]
        assert record["steps"] == [2, 3, 2, 3]
        assert record["num_batches"] == [6] * 4
        assert set(record["verdict"]) <= {"passed", "failed"}
    shuffled, processed, rescaled, added = records
    # every row is used: none of the four steps has more than 64 in a batch
    for record in (processed, rescaled):
        assert record["num_rows"] == expected["num_rows"] == shuffled["num_rows"]
        assert record["num_candidates"] == pytest.approx(expected["num_candidates"])
        assert record["reference_nats"] == pytest.approx(expected["estimate_nats"], abs=1e-6)
    assert all(n < m for n, m in zip(added["num_candidates"], expected["num_candidates"], strict=True))
    lines = self_checks_table(records).splitlines()
    assert lines[0].startswith("self-checks in nats, mixed_excluding, all candidates")
    assert [line.split()[:3] for line in lines[2:6]] == [
        [direction, k, "info_nce"] for direction in ("down", "right") for k in "23"
    ]
    assert all(line.count("+-") == 4 for line in lines[2:6])


def test_two_images_have_no_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    records = grid_checks(2)[0].records(PROTOCOL, "test")
    *others, added = records
    assert added["verdict"] == ["not measured"] * 4
    assert added["num_rows"] == [0] * 4
    assert added["reading_nats"] == added["difference_nats"] == [None] * 4
    assert all("not measured" not in each["verdict"] for each in others)
    table = self_checks_table(records)
    assert "not measured" in table.splitlines()[2]
    assert "additivity not measured: no finite estimate" in table


def test_only_a_run_gets_the_file_of_the_monitor(tmp_path: Path) -> None:
    records = grid_checks(2)[0].records(PROTOCOL, "test")
    model = tmp_path / "run" / "model"
    model.mkdir(parents=True)
    assert append_to_run(model, 7, records) is None
    (tmp_path / "run" / "bound.jsonl").touch()
    assert append_to_run(model, None, records) is None
    assert append_to_run(model, 7, records) == append_to_run(tmp_path / "run", 9, records)
    lines = read_records(tmp_path / "run" / "self_checks.jsonl")
    assert [line["step"] for line in lines] == [7] * 4 + [9] * 4
    assert lines[0]["labels"] == ["down, k = 2", "down, k = 3", "right, k = 2", "right, k = 3"]
    assert [line["check"] for line in lines[:4]] == ["shuffled", "data_processing", "rescaling", "additivity"]


def test_self_checks_are_reported_and_change_nothing_else(
    model: cpc.CPC, manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On windows of an untrained model, whose scores know nothing: info_nce passes every check."""
    run = tmp_path / "run"
    save_pretrained(model, run / "model", provenance={"step": 7, "data": DATA.saved_settings})
    options: dict[str, Any] = {"num_batches": 3, "batch_size": 8, "estimators": ["tuba"], "num_negatives": (None, 5)}
    options["negatives"] = ("mixed_excluding", "mixed")
    report = evaluate(run / "model", manifest, **options)
    assert report["self_checks"] == []
    capsys.readouterr()
    checked = evaluate(run / "model", manifest, **options, self_checks=True)
    assert {**checked, "self_checks": []} == report
    assert capsys.readouterr().out.count("self-checks in nats, mixed_excluding") == 2
    assert json.loads((run / "model" / "bound.json").read_text()) == checked
    keys = [(each["num_negatives"], each["estimator"], each["check"]) for each in checked["self_checks"]]
    checks = ("shuffled", "data_processing", "rescaling", "additivity")
    assert keys == [(num, name, check) for num in (None, 5) for name in ("info_nce", "tuba") for check in checks]
    for each in checked["self_checks"]:
        assert (each["strategy"], each["split"], each["steps"]) == ("mixed_excluding", "valid", [1, 2])
        lists = ("reading_nats", "reference_nats", "difference_nats", "standard_error_nats")
        for read, referred, difference, error in zip(*(each[name] for name in lists), strict=True):
            assert read - referred == pytest.approx(difference, abs=1e-9)
            assert abs(difference) < 0.5
            assert error > 0
        assert each["verdict"] == ["passed"] * 2 or each["estimator"] == "tuba"
        assert all(each["meaning"])
        if each["check"] == "shuffled":
            assert each["reference_nats"] == [0, 0]
        if each["check"] == "data_processing" and each["estimator"] == "info_nce":
            (bound,) = (b for b in checked["bounds"] if (b["strategy"], b["num_negatives"]) == keys_of(each))
            assert each["reference_nats"] == pytest.approx(bound["mi_bound_nats"], abs=0.1)
            if each["num_negatives"] is None:
                assert each["num_candidates"] == pytest.approx(bound["num_candidates"], rel=0.01)
    assert not (run / "self_checks.jsonl").exists()  # the folder is no run yet
    (run / "bound.jsonl").touch()
    again = evaluate(run, manifest, **options, self_checks=True)
    assert again["self_checks"] == checked["self_checks"]
    lines = read_records(run / "self_checks.jsonl")
    assert [(line["num_negatives"], line["estimator"], line["check"]) for line in lines] == keys
    assert [(line["step"], line["labels"]) for line in lines] == [(7, ["k = 1", "k = 2"])] * len(keys)
    with pytest.raises(ValueError, match=r"self_checks reads mixed_excluding.*add mixed_excluding to `negatives`"):
        evaluate(run, manifest, negatives=["mixed"], self_checks=True)


def keys_of(record: dict[str, Any]) -> tuple[str, int | None]:
    return record["strategy"], record["num_negatives"]


def test_one_batch_of_three_sequences_is_not_measured(model: cpc.CPC, manifest: Path, tmp_path: Path) -> None:
    save_pretrained(model, tmp_path, provenance={"step": 7, "data": DATA.saved_settings})
    report = evaluate(tmp_path, manifest, num_batches=1, batch_size=3, self_checks=True)
    for each in report["self_checks"]:
        assert each["verdict"] == ["not measured"] * 2
        assert all("raise num_batches" in meaning for meaning in each["meaning"])
    *_, sums = report["self_checks"]
    assert (sums["num_rows"], sums["reading_nats"]) == ([0, 0], [None, None])


def test_the_mean_score_of_positives_is_checked_with_shuffled_pairs(
    model: cpc.CPC, manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Steps with a gap and draws; the other checks hold for any mean, or fail for the exact scores."""
    torch.manual_seed(0)
    anchored = CPC(model.encoder, model.context, Bilinear(steps=[3, 5]), Contrastive(num_negatives=4, anchor=True))
    save_pretrained(anchored, tmp_path, provenance={"step": 7, "data": DATA.saved_settings})
    report = evaluate(tmp_path, manifest, num_batches=3, batch_size=8, estimators=["anchor"], self_checks=True)
    checks = [(each["estimator"], each["check"]) for each in report["self_checks"]]
    names = ("shuffled", "data_processing", "rescaling", "additivity")
    assert checks == [*(("info_nce", name) for name in names), ("anchor", "shuffled")]
    assert all(each["steps"] == [3, 5] and each["num_negatives"] == 4 for each in report["self_checks"])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows if row[1:2] == ["anchor"] and row[-3:] == ["-"] * 3] == ["3", "5"]
