"""The self-checks of a model: grids, tables, and the file that the monitor reads."""

from pathlib import Path

import pytest
import torch

from cpc.contexts import PixelCNN
from cpc.data.batch import Batch
from cpc.data.store.records import read_records
from cpc.encoders import TinyTrunk
from cpc.encoders.patches import PatchEncoder
from cpc.evaluation import HeldOutReadings, SelfChecks, self_checks_table
from cpc.evaluation.self_checks import append_to_run
from cpc.losses import Contrastive, EvalProtocol
from cpc.model import CPC
from cpc.predictors import Bilinear

PROTOCOL = EvalProtocol("mixed_excluding", None)


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
