"""`cpc probe` and `cpc embed`: each option reaches what it is for."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpc.cli import main
from cpc.probes import Probe, fit_probe, store


def test_probe(
    model_folder: Path,
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    refusal: Callable[..., str],
) -> None:
    (corpus / "broken.wav").write_bytes(b"no audio")
    with (corpus / "manifest.csv").open("a", newline="") as stream:
        csv.writer(stream).writerow(["broken.wav", "train", "ann", "6400", "16000", "1", "low"])
    stores: list[tuple[np.ndarray, Any]] = []
    probes: list[Probe] = []

    def allocated(*arguments: Any) -> np.ndarray:
        stores.append((allocate(*arguments), arguments[-1]))
        return stores[-1][0]

    def fitted(*arguments: Any, **options: Any) -> Probe:
        probes.append(fit_probe(*arguments, **options))
        return probes[-1]

    allocate = store._allocate
    monkeypatch.setattr(store, "_allocate", allocated)
    monkeypatch.setattr("cpc.probes.comparison.fit_probe", fitted)
    for name in ("scratch", "packs"):
        (tmp_path / name).mkdir()
    command = ["probe", str(model_folder), "--data", str(corpus), "--task", "first"]
    command += ["--features", "c", "--baselines", "--cache_dir", str(tmp_path / "packs")]
    command += ["--l2", "3", "--precision", "bfloat16"]
    command += ["--dtype", "float16", "--max_ram_gb", "0"]
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    command += ["--train_minutes", "0.04", "--pool", "frames", "--test_split", "valid", "--device", "cpu"]
    command += ["--out", str(tmp_path / "elsewhere.json")]

    message = refusal(command)
    assert "broken.wav" in message
    assert "set --skip_bad" in message
    with pytest.warns(UserWarning, match=r"went on without 1 of 37 files.*\n.*broken\.wav"):
        main([*command, "--skip_bad"])

    report = json.loads((tmp_path / "elsewhere.json").read_text())
    assert report["data"]["num_skipped"] == 1
    protocol = report["protocol"]
    assert protocol["probe"] == {"l2": 3.0, "normalise": None, "frames_around": 0}
    assert (protocol["precision"], protocol["dtype"], protocol["device"]) == ("bfloat16", "float16", "cpu")
    assert protocol["train_minutes"] == 0.04
    task = report["tasks"]["first"]["protocol"]
    assert (task["pool"], task["test_split"], task["num_train"]) == ("frames", "valid", 6)
    assert list(report["tasks"]["first"]["results"]) == ["cpc"]
    assert [tuple(probe.weight.shape) for probe in probes] == [(3, 10)]
    ((values, folder),) = stores
    assert isinstance(values, np.memmap)
    assert values.dtype == np.float16
    assert Path(folder) == tmp_path / "scratch"
    assert list((tmp_path / "packs").glob("*/rows.bin"))
    assert not (corpus / ".cpc_cache").exists()
    assert "first: 3 classes" in capsys.readouterr().out


def test_embed(
    model_folder: Path,
    tmp_path: Path,
    write_audio: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    refusal: Callable[..., str],
) -> None:
    write_audio(tmp_path / "audio" / "good.wav")
    (tmp_path / "audio" / "broken.wav").write_bytes(b"no audio")
    command = ["embed", str(model_folder), str(tmp_path / "audio"), "--out", str(tmp_path / "out")]
    assert "broken.wav" in refusal(command)
    with pytest.warns(UserWarning, match="left out 1 of 2 files"):
        main([*command, "--skip_bad"])
    assert f"1 files written to {tmp_path / 'out'}" in capsys.readouterr().out
    exact = np.load(tmp_path / "out" / "good.npy")
    assert "set --overwrite" in refusal([*command, "--skip_bad"])
    with pytest.warns(UserWarning, match="left out 1 of 2 files"):
        main([*command, "--skip_bad", "--overwrite", "--precision", "bfloat16", "--device", "cpu"])
    rough = np.load(tmp_path / "out" / "good.npy")
    assert 0 < np.abs(rough - exact).max() < 0.1
    assert "--device=nowhere must be auto" in refusal([*command, "--overwrite", "--device", "nowhere"])
