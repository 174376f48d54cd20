"""Checkpoints of CPC_audio against a network that computes what its paper and code describe, written here anew."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cpc_audio_checkpoint import DIM, NUM_STEPS, SHAPES, WIDTH, random_weights, save
from refusals import Code, refuses
from torch import Tensor, nn

import cpc
from cpc import cli
from cpc.interop.cpc_audio import import_checkpoint


def oracle(weights: dict[str, Tensor], context: str, norm: str, x: Tensor) -> tuple[Tensor, Tensor]:
    own = {name: value.double() for name, value in weights.items()}
    hidden = x.double()[:, None]
    for index, (_, stride, padding) in enumerate(SHAPES):
        kernel, bias = own[f"gEncoder.conv{index}.weight"], own[f"gEncoder.conv{index}.bias"]
        hidden = F.conv1d(hidden, kernel, bias, stride, padding)
        norm_weights = {name.rpartition(".")[2]: value for name, value in own.items() if f"batchNorm{index}." in name}
        if norm == "layerNorm":
            deviation = (hidden.var(1, keepdim=True) + 1e-5).sqrt()  # unbiased
            hidden = (hidden - hidden.mean(1, keepdim=True)) / deviation * norm_weights["weight"] + norm_weights["bias"]
        elif norm == "batchNorm":
            statistics = norm_weights["running_mean"], norm_weights["running_var"]
            hidden = F.batch_norm(hidden, *statistics, norm_weights["weight"], norm_weights["bias"])
        hidden = hidden.relu()
    z = hidden.transpose(1, 2)
    prefix = "gAR.baseNet."
    state = {name.removeprefix(prefix): value for name, value in own.items() if name.startswith(prefix)}
    num_layers = sum("weight_hh" in name for name in state)
    recurrent = {"GRU": nn.GRU, "LSTM": nn.LSTM}[context](DIM, WIDTH, num_layers, batch_first=True).double()
    recurrent.load_state_dict(state)
    return z, recurrent(z)[0].detach()


@pytest.mark.parametrize("norm", ["layerNorm", "batchNorm", "ID"])
@pytest.mark.parametrize(("context", "num_layers"), [("GRU", 1), ("LSTM", 1), ("LSTM", 2)])
def test_features_and_scores_are_the_checkpoints(tmp_path: Path, norm: str, context: str, num_layers: int) -> None:
    weights, criterion = random_weights(context, norm, num_layers)
    arguments = {"nPredicts": NUM_STEPS, "arMode": context, "normMode": norm, "cpc_mode": None, "sizeWindow": 20480}
    prefixed = [{f"module.{name}": value for name, value in each.items()} for each in (weights, criterion)]
    path = save(tmp_path, *prefixed, arguments)
    cli.main(["import", str(path), "--out", str(tmp_path / "model")])
    model = cpc.load_pretrained(tmp_path / "model")
    x = torch.randn(3, 6400)
    z, c = oracle(weights, context, norm, x)
    with torch.no_grad():
        output = model(x)
    torch.testing.assert_close(output.latents.double(), z, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(output.contexts.double(), c, atol=1e-5, rtol=1e-5)
    for k in range(1, NUM_STEPS + 1):  # its score is a mean over channels of a prediction times a latent
        expected = ((c @ criterion[f"wPrediction.predictors.{k - 1}.weight"].double().T)[:, :-k] * z[:, k:]).mean(-1)
        scores = (output.queries[""][k - 1][:, :-k] * output.latents[:, k:]).sum(-1)
        torch.testing.assert_close(scores.double(), expected, atol=1e-5, rtol=1e-5)


def test_quiet_input_has_the_features_of_the_checkpoint(tmp_path: Path) -> None:
    """If variances are about as small as epsilon, features show whether epsilon is added to the unbiased variance."""
    weights, _ = random_weights("GRU", "layerNorm")
    for index in range(len(SHAPES)):
        for name in (f"conv{index}.bias", f"batchNorm{index}.bias"):
            weights[f"gEncoder.{name}"] *= 0
    model = cpc.load_pretrained(import_checkpoint(save(tmp_path, weights), out=tmp_path / "model"))
    x = 2e-3 * torch.randn(2, 3200)
    z, c = oracle(weights, "GRU", "layerNorm", x)
    with torch.no_grad():
        output = model(x)
    torch.testing.assert_close(output.latents.double(), z, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(output.contexts.double(), c, atol=1e-5, rtol=1e-5)


def test_other_predictors_are_left_out_and_said_so(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    weights, _ = random_weights("LSTM", "layerNorm")
    transformer = {"wPrediction.predictors.0.0.multihead.Wq.weight": torch.randn(4, 4)}
    import_checkpoint(save(tmp_path / "a", weights, transformer), out=tmp_path / "model")
    assert "the predictors are not linear in c, so none are imported" in capsys.readouterr().err
    speaker_predictors = {f"wPrediction.predictors.{k}.weight": torch.randn(DIM, WIDTH + 3) for k in range(2)}
    import_checkpoint(save(tmp_path / "s", weights, speaker_predictors), out=tmp_path / "speakers")
    assert "the predictors are not linear in c, so none are imported" in capsys.readouterr().err
    model = cpc.load_pretrained(tmp_path / "model")
    assert model.predictor.num_steps == 12
    torch.save({"config": {"nPredicts": 4, "arMode": "LSTM"}, "weights": weights}, tmp_path / "60k.pt")
    import_checkpoint(tmp_path / "60k.pt", out=tmp_path / "again")
    assert "there are no predictors, so none are imported" in capsys.readouterr().err
    again = cpc.load_pretrained(tmp_path / "again")
    assert again.predictor.num_steps == 4
    x = torch.randn(1, 3200)
    torch.testing.assert_close(again.encode(x)[1], model.encode(x)[1], rtol=0, atol=0)


def test_files_of_torch_before_they_were_archives(tmp_path: Path) -> None:
    weights, criterion = random_weights("GRU", "layerNorm")
    path = save(tmp_path / "new", weights, criterion)
    import_checkpoint(path, out=tmp_path / "expected")
    predictor = cpc.load_pretrained(tmp_path / "expected").predictor  # of as many steps as there are
    of_steps = torch.cat([criterion[f"wPrediction.predictors.{k}.weight"] for k in range(NUM_STEPS)]) / DIM
    torch.testing.assert_close(predictor.linear.weight, of_steps, rtol=0, atol=0)
    content, legacy = torch.load(path), tmp_path / "legacy.pt"
    torch.save(content, legacy, _use_new_zipfile_serialization=False)
    import_checkpoint(legacy, out=tmp_path / "found")
    expected, found = (cpc.load_pretrained(tmp_path / name).state_dict() for name in ("expected", "found"))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    legacy.write_bytes(legacy.read_bytes()[:-200])
    refuses(r"legacy.pt: is damaged", import_checkpoint, legacy, out=tmp_path / "model")
    torch.save({"gEncoder": Code(tmp_path / "run")}, legacy, _use_new_zipfile_serialization=False)
    refuses(r"damaged, or holds objects that could run code", import_checkpoint, legacy, out=tmp_path / "model")


def test_what_cannot_be_taken_over_is_named(tmp_path: Path) -> None:
    weights, criterion = random_weights("GRU", "layerNorm")
    missing = {name: value for name, value in weights.items() if name != "gEncoder.conv3.bias"}
    instance = {name: value.flatten() if "batchNorm" in name else value for name, value in weights.items()}
    wrong = weights | {"gEncoder.conv2.weight": torch.zeros(DIM, DIM, 5)}
    batch_norm, _ = random_weights("GRU", "batchNorm")
    no_ar = {name: value for name, value in weights.items() if "gAR" not in name}
    cases: list[tuple[Any, dict[str, Any] | None, str]] = [
        (missing, None, "the weight gEncoder.conv3.bias is missing"),
        (no_ar, {"arMode": "no_ar"}, "arMode='no_ar' is not one of GRU, LSTM"),
        (no_ar, None, "the weight gAR.baseNet.weight_hh_l0 is missing"),
        (weights, {"encoder_type": "mfcc"}, "encoder_type='mfcc' is not one of cpc"),
        (weights, {"cpc_mode": "reverse"}, "cpc_mode='reverse'"),
        (random_weights("RNN", "ID")[0], None, "=1.0 is not one of 3, 4"),
        (instance, None, "cpc has no instance norm"),
        (wrong, None, "do not fit a ConvLayer of cpc: size mismatch for weight"),
        (weights | {"gEncoder.conv5.weight": torch.zeros(1)}, None, "cpc does not have: gEncoder.conv5.weight"),
        ([1], None, "must map names to tensors"),
        (weights, {"nPredicts": 12}, "the number of predictors=5 is not one of 0, 12"),
        (weights, {"nPredicts": 10**9}, "nPredicts=1000000000 must be at least 1 and at most 1024"),
        (weights | {"gEncoder.conv0.weight": torch.tensor(0.0)}, None, r"conv0.weight has the shape \[\], which"),
        (weights | {"gAR.baseNet.weight_hh_l0": torch.tensor(0.0)}, None, r"weight_hh_l0 has the shape \[\], which"),
        (batch_norm | {"gEncoder.batchNorm2.running_var": torch.ones(3)}, None, r"running_var has the shape \[3\]"),
        (weights | {"gEncoder.conv0.bias": torch.full((DIM,), torch.nan)}, None, "not finite, in encoder"),
    ]
    for number, (content, arguments, words) in enumerate(cases):
        path = save(tmp_path / str(number), content, criterion, arguments)
        refuses(words, import_checkpoint, path, out=tmp_path / "model")
    whole = save(tmp_path / "arguments", weights).read_bytes()
    damaged = bytearray(whole)
    damaged[whole.index(weights["gEncoder.conv3.bias"].numpy().tobytes())] ^= 1
    path = tmp_path / "x.pt"
    for content, words in (
        (whole[:-2000], "cut off"),
        (bytes(damaged), r"x.pt cannot be read: cut off, damaged"),
        (b"<!DOCTYPE html><title>404 Not Found</title>", r"no checkpoint at all: it begins with b'<!DOCTYPE"),
        ({"gEncoder": Code(tmp_path / "code")}, "could run code"),
        ({"state_dict": {}}, "holds neither `gEncoder` nor `weights`"),
    ):
        torch.save(content, path)
        if isinstance(content, bytes):
            path.write_bytes(content)
        refuses(words, import_checkpoint, path, out=tmp_path / "model")
    path = tmp_path / "arguments" / "checkpoint_3.pt"
    path.with_name("checkpoint_args.json").write_text("{")
    refuses(r"checkpoint_args\.json is not JSON", import_checkpoint, path, out=tmp_path / "model")
    assert not (tmp_path / "model").exists()
    (tmp_path / "run").mkdir()
    refuses(r"`out`=.*run already exists: name a new folder, or", import_checkpoint, path, out=tmp_path / "run")
    assert not list((tmp_path / "run").iterdir())
