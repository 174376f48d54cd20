"""`cpc pretrain --init_from`: which weights a run begins with, and what is said of the others."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import cpc
from cpc.checkpoint import read_config
from cpc.data.audio.index import index_folder
from cpc.pretraining.command import pretrain
from cpc.pretraining.transfer import start_from


def model_of(dim: int = 8, context_dim: int = 6, context: Any = cpc.contexts.GRU, num_steps: int = 3) -> cpc.CPC:
    return cpc.CPC(cpc.encoders.AudioEncoder(dim=dim), context(dim=context_dim), cpc.predictors.Bilinear(num_steps))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    torch.manual_seed(1)
    model = model_of()
    model.encoder.set_statistics(0.1, 0.5)
    model.initialise_from(torch.randn(2, 3200))
    cpc.save_pretrained(model, tmp_path / "saved")
    return tmp_path / "saved"


def test_all_weights_and_statistics_are_taken_over(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = model_of()
    start_from(model, saved)
    torch.testing.assert_close(model.state_dict(), cpc.load_pretrained(saved).state_dict(), rtol=0, atol=0)
    assert model.is_initialised
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("other", "parts", "words"),
    [
        ({"context_dim": 7}, {"context", "predictors"}, r"model.context starts anew: layers.weight_ih_l0 is \[18, 8\]"),
        ({"context": cpc.contexts.LSTM}, {"context"}, r"model.context starts anew"),
        (
            {"num_steps": 4},
            {"predictors"},
            r"model.predictors starts anew: 0.linear.weight is \[24, 6\] there, \[32, 6\]",
        ),
    ],
)
def test_parts_that_do_not_fit_start_anew_and_are_named(
    saved: Path, capsys: pytest.CaptureFixture[str], other: dict[str, Any], parts: set[str], words: str
) -> None:
    model = model_of(**other)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    start_from(model, saved)
    kept = {name.partition(".")[0] for name, tensor in model.state_dict().items() if torch.equal(tensor, before[name])}
    assert kept == parts
    told = capsys.readouterr().err
    assert told.count("starts anew") == len(parts)
    assert re.search(words, told)


def test_an_encoder_that_does_not_fit_is_refused(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--init_from .*saved: its encoder does not fit model.encoder: .* is \[8"):
        start_from(model_of(dim=9), saved)
    with pytest.raises(ValueError, match="holds no model"):
        start_from(model_of(), tmp_path)


def test_a_run_begins_with_them_and_resumes_with_its_own(
    saved: Path, tmp_path: Path, write_audio: Callable[..., Path]
) -> None:
    for number in range(9):
        write_audio(tmp_path / "audio" / ("train", "train", "valid")[number % 3] / f"{number}.wav", seconds=0.5)
    index_folder(tmp_path / "audio", split_level=0, progress=False)
    config = {
        "model": {
            "encoder": {"class_path": "cpc.encoders.AudioEncoder", "init_args": {"dim": 8}},
            "context": {"class_path": "cpc.contexts.GRU", "init_args": {"dim": 6}},
            "predictor": {"class_path": "cpc.predictors.Bilinear", "init_args": {"num_steps": 3}},
            "learning_rate": 1e-3,
            "extra_strategies": [],
        },
        "data": {
            "class_path": "cpc.data.Audio",
            "init_args": {"manifest": str(tmp_path / "audio"), "window_samples": 3200, "batch_size": 2},
        },
        "trainer": {"max_steps": 4, "accelerator": "cpu", "logger": False, "enable_progress_bar": False},
        "init_from": str(saved),
        "checkpoint_every_steps": 2,
    }
    whole = pretrain(config | {"run_dir": str(tmp_path / "whole")})
    start, end = cpc.load_pretrained(saved), cpc.load_pretrained(whole)
    assert end.encoder.input_std == start.encoder.input_std == 0.5
    moved = [float((b - a).detach().abs().max()) for a, b in zip(start.parameters(), end.parameters(), strict=True)]
    assert 0 < max(moved) < 5e-3  # four steps of 1e-3 from where they were
    assert read_config(whole)["provenance"]["init_from"] == str(saved)
    assert f"init_from: {saved}" in (whole / "config.yaml").read_text()

    stopped = config | {"run_dir": str(tmp_path / "stopped")}
    pretrain(stopped | {"trainer": config["trainer"] | {"max_steps": 2}})
    (saved / "config.json").unlink()  # not needed any more
    resumed = pretrain(stopped | {"ckpt_path": "last"})
    torch.testing.assert_close(cpc.load_pretrained(resumed).state_dict(), end.state_dict(), rtol=0, atol=0)
