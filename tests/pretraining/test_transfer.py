"""Weights that a run starts from: `--init_from` and `--model.frozen`."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import refuses

import cpc
from cpc.checkpoint import read_checkpoint, read_config
from cpc.pretraining.pretrain import pretrain
from cpc.pretraining.transfer import start_from
from cpc.quickstart.recipe import part


def model_of(dim: int = 8, context_dim: int = 6, context: Any = cpc.contexts.GRU, **changes: Any) -> cpc.CPC:
    predictor = cpc.predictors.Bilinear(**changes.get("predictor", {"num_steps": 3}))
    return cpc.CPC(cpc.encoders.AudioEncoder(dim=dim, **changes.get("encoder", {})), context(context_dim), predictor)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    torch.manual_seed(1)
    model = model_of()
    model.encoder.set_statistics(0.1, 0.5)
    model.initialise_from(torch.randn(2, 3200))
    cpc.save_pretrained(model, tmp_path / "saved")
    return tmp_path / "saved"


@pytest.mark.parametrize(
    ("other", "parts", "words"),
    [
        ({"context_dim": 7}, {"context", "predictors"}, r"model.context starts anew: layers.weight_ih_l0 is \[18, 8\]"),
        ({"context": cpc.contexts.LSTM}, {"context"}, r"model.context starts anew"),
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


@pytest.mark.parametrize(
    ("predictor", "words"),
    [
        ({"num_steps": 2}, "num_steps 3 in the saved model, 2 here"),
        ({"steps": [3]}, "steps None in the saved model, (3,) here"),
        ({"steps": [1, 3, 9]}, "steps None in the saved model, (1, 3, 9) here"),
    ],
)
def test_weights_go_to_their_step_and_not_to_their_index(
    saved: Path, capsys: pytest.CaptureFixture[str], predictor: dict[str, Any], words: str
) -> None:
    model = model_of(predictor=predictor)
    before = model.predictor.weights.detach().clone()
    start_from(model, saved)
    expected = cpc.load_pretrained(saved).predictor.weights
    for place, step in enumerate(model.predictor_steps):
        assert torch.equal(model.predictor.weights[place], expected[step - 1] if step <= 3 else before[place])
    told = capsys.readouterr().err
    assert "model.predictors is copied in shared steps; other steps start anew, with " in told
    assert f"{words}\n" in told


@pytest.mark.parametrize("predictor", [cpc.predictors.Bilinear, cpc.predictors.TransformerPredictor])
def test_predictors_of_other_steps_start_anew_though_their_shapes_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], predictor: Any
) -> None:
    def of_steps(*steps: int) -> cpc.CPC:
        return cpc.CPC(cpc.encoders.AudioEncoder(dim=8), cpc.contexts.GRU(dim=16), predictor(steps=steps))

    cpc.save_pretrained(of_steps(1, 2), tmp_path)
    model = of_steps(3, 5)
    before = {name: tensor.clone() for name, tensor in model.predictors.state_dict().items()}
    start_from(model, tmp_path)
    torch.testing.assert_close(model.predictors.state_dict(), before, rtol=0, atol=0)
    words = "model.predictors starts anew: steps (1, 2) in the saved model, (3, 5) here\n"
    assert words in capsys.readouterr().err


def test_a_saved_model_may_name_no_more_classes_than_the_new_one_does(saved: Path) -> None:
    config = json.loads((saved / "config.json").read_text())
    linear = {"class_path": "torch.nn.Linear", "init_args": {"in_features": 2, "out_features": 2}}
    config["architecture"]["init_args"]["encoder"] = linear
    (saved / "config.json").write_text(json.dumps(config))
    refuses(r"torch.nn.Linear, outside the trusted packages cpc;", start_from, model_of(), saved)


def test_an_encoder_that_does_not_fit_is_refused(saved: Path, tmp_path: Path) -> None:
    refuses(r"--init_from .*: its encoder does not fit model.encoder: .* is \[8", start_from, model_of(dim=9), saved)
    refuses("holds no model", start_from, model_of(), tmp_path)


@pytest.fixture
def config(tmp_path: Path, write_corpus: Callable[..., Path]) -> dict[str, Any]:
    audio = write_corpus(tmp_path / "audio", train=6, valid=3)
    return {
        "model": {
            "encoder": part("encoders.AudioEncoder", dim=8),
            "context": part("contexts.GRU", dim=6),
            "predictor": part("predictors.Bilinear", num_steps=3),
            "learning_rate": 1e-3,
            "extra_strategies": [],
        },
        "data": part("data.Audio", manifest=str(audio), window_samples=3200, batch_size=2),
        "trainer": {"max_steps": 4, "accelerator": "cpu", "logger": False, "enable_progress_bar": False},
        "checkpoint_every_steps": 2,
    }


def test_a_run_begins_with_them_and_resumes_with_its_own(
    config: dict[str, Any], saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config |= {"init_from": str(saved)}
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
    # What is named now was not started from: neither nothing, nor another model, replaces what the run began with.
    capsys.readouterr()
    resumed = pretrain(stopped | {"ckpt_path": "last", "init_from": None, "seed_everything": 7})
    assert "no effect on a resumed run: seed_everything 0 -> 7; its weights" in capsys.readouterr().err
    assert read_checkpoint(resumed / "checkpoints" / "last.ckpt")["callbacks"]["RunFolder"]["init_from"] == str(saved)
    torch.testing.assert_close(cpc.load_pretrained(resumed).state_dict(), end.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("frozen", [["encoder"], ["encoder.layers.0", "context"], ["predictors"]])
def test_frozen_parts_stay_as_they_are(config: dict[str, Any], saved: Path, tmp_path: Path, frozen: list[str]) -> None:
    config |= {"init_from": str(saved), "model": config["model"] | {"frozen": frozen}}
    end = cpc.load_pretrained(pretrain(config | {"run_dir": str(tmp_path / "run")}))
    for name, weights in cpc.load_pretrained(saved).named_parameters():
        is_frozen = name.startswith(tuple(f"{part}." for part in frozen))
        assert torch.equal(end.get_parameter(name), weights) == is_frozen, name


def test_parts_that_are_not_there_cannot_be_frozen(config: dict[str, Any], tmp_path: Path) -> None:
    for name in ("encodr", ""):
        with pytest.raises(ValueError, match=f"names '{name}', but the model has encoder, context"):
            pretrain(config, model={"frozen": [name]}, run_dir=tmp_path / "run")


@pytest.mark.parametrize("setting", [{"sample_rate_hz": 8000}, {"strides": (4, 4, 2, 2, 2)}])
def test_an_encoder_of_other_geometry_is_refused_though_its_shapes_fit(saved: Path, setting: dict[str, Any]) -> None:
    words = r"does not fit model.encoder: .*'hop_samples': 160} in the saved model, .* here"
    refuses(words, start_from, model_of(encoder=setting), saved)


def test_settings_that_change_no_shape_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def of_heads(num_heads: int) -> cpc.CPC:
        context = cpc.contexts.CausalTransformer(dim=8, num_heads=num_heads)
        return cpc.CPC(cpc.encoders.AudioEncoder(dim=8), context, cpc.predictors.Bilinear(3))

    cpc.save_pretrained(of_heads(2), tmp_path)
    start_from(of_heads(4), tmp_path)
    assert "model.context is copied, with num_heads 2 in the saved model, 4 here\n" in capsys.readouterr().err
