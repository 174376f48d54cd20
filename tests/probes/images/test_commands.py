"""`cpc probe` and `cpc embed` on a model of images: each option reaches what it is for."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cpc.cli import main


def test_probe(model_folder: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["probe", str(model_folder), "--data", str(source), "--task", "class"]
    command += ["--features", "z_grid", "c", "--baselines", "hog", "supervised", "--label_shares", "0.2", "1"]
    command += ["--l2", "3", "--precision", "bfloat16"]
    command += ["--train_split", "valid", "--test_split", "train", "--supervised_seconds", "0.2"]
    command += ["--cache_dir", str(tmp_path / "packs"), "--device", "cpu", "--out", str(tmp_path / "elsewhere.json")]
    main(command)
    report = json.loads((tmp_path / "elsewhere.json").read_text())
    protocol = report["protocol"]
    assert protocol["probe"] == {"l2": 3.0}
    assert (protocol["precision"], protocol["device"]) == ("bfloat16", "cpu")
    assert protocol["supervised"]["seconds"] == 0.2
    task = report["tasks"]["class"]
    assert list(task["results"]) == ["cpc_grid", "cpc_c", "hog", "supervised"]
    assert (task["protocol"]["num_train"], task["protocol"]["num_test"]) == (8, 30)
    assert task["label_efficiency"]["num_labels"] == [2, 8]
    assert len(list((tmp_path / "packs").glob("*/rows.bin"))) == 1
    printed, shown = capsys.readouterr()
    for stage in (
        "features z_grid c",
        "probe cpc_grid: class",
        "probe cpc_c: class",
        "features hog",
        "probe supervised: class",
    ):
        assert f"{stage}: 100%" in shown
    assert "class: 2 classes, split valid (8 images) -> train (30)" in printed
    assert f"written to {tmp_path / 'elsewhere.json'}" in printed
    assert not (model_folder / "probe.json").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--alignments", "there.csv"], "unrecognized arguments: --alignments"),
        (["--pool", "mean"], "--pool is 'mean'"),
        (["--label_shares", "0.5", "0"], "--label_shares=0.0 must be positive and at most 1"),
        (["--task", "speaker"], "task='speaker' is unknown for images: set --task to class"),
    ],
)
def test_probe_refuses(
    options: list[str], message: str, model_folder: Path, source: Path, refusal: Callable[..., str]
) -> None:
    task = [] if "--task" in options else ["--task", "class"]
    printed = refusal(["probe", str(model_folder), "--data", str(source), *task, *options])
    assert message in printed
    assert not (model_folder / "probe.json").exists()
