import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import cpc
from cpc import checkpoint
from cpc.checkpoint import build, describe
from cpc.contexts import GRU, LSTM, CausalConv, CausalTransformer, GridContext, PixelCNN, RowGRU
from cpc.encoders import MFCC, AudioEncoder, LogMel, PatchEncoder, ResNetTrunk, TinyTrunk, VectorEncoder
from cpc.model import CPC
from cpc.predictors import MLP, Bilinear, TransformerPredictor


def small(context_dim: int = 6) -> CPC:
    torch.manual_seed(0)
    model = CPC(
        AudioEncoder(dim=8, norm="layer"), GRU(dim=context_dim), Bilinear(num_steps=3), negatives="same_speaker"
    )
    model.encoder.set_statistics(0.1, 2.0)
    return model


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    model = small()
    cpc.save_pretrained(model, tmp_path / "model", provenance={"step": 7})
    for folder in (tmp_path / "model", tmp_path):  # the folder itself, or a run folder around it
        back = cpc.load_pretrained(folder)
        assert not back.training
        assert back.negatives == "same_speaker"
        x = torch.randn(2, 1600)
        assert torch.equal(back(x).contexts, model.eval()(x).contexts)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert (config["format_version"], config["sample_rate_hz"], config["hop_samples"]) == (1, 16000, 160)
    assert config["provenance"] == {"step": 7}


@pytest.mark.parametrize("context", [GRU(8), LSTM(8, num_layers=2), CausalConv(8), CausalTransformer(8, num_heads=2)])
@pytest.mark.parametrize("predictor", [Bilinear(2), MLP(2), TransformerPredictor(2, num_heads=2)])
def test_every_part_describes_itself(context: nn.Module, predictor: nn.Module, tmp_path: Path) -> None:
    """Each __init__ argument stands under its own name: what `describe` relies on."""
    description = describe(CPC(AudioEncoder(dim=8), build(describe(context)), build(describe(predictor))))
    rebuilt = build(json.loads(json.dumps(description)))
    assert describe(rebuilt) == description


@pytest.mark.parametrize("encoder", [AudioEncoder(8), LogMel(), MFCC(), VectorEncoder(3)])
def test_every_encoder_describes_itself(encoder: nn.Module, tmp_path: Path) -> None:
    assert describe(build(json.loads(json.dumps(describe(encoder))))) == describe(encoder)
    cpc.save_pretrained(CPC(encoder, GRU(8), Bilinear(2)), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["modality"] == ("vectors" if isinstance(encoder, VectorEncoder) else "audio")
    assert (config["sample_rate_hz"], config["hop_samples"]) == (encoder.sample_rate_hz, encoder.hop_samples)


@pytest.mark.parametrize("trunk", [TinyTrunk(8, 1, (4, 1), (8, 8), "layer"), ResNetTrunk(18, "group", num_channels=1)])
@pytest.mark.parametrize("context", [PixelCNN(8, 1, 4, ("down", "left")), RowGRU(8)])
def test_a_model_of_images_comes_back(trunk: nn.Module, context: GridContext, tmp_path: Path) -> None:
    """Parts within parts, tuples that JSON makes lists of, and a network and predictor for every direction."""
    model = CPC(
        PatchEncoder(build(describe(trunk)), 16, 8),
        build(describe(context)),
        Bilinear(1),
        "mixed_excluding",
        skip_steps=1,
    )
    model.encoder.set_statistics(torch.tensor([0.25]), torch.tensor([0.125]))
    cpc.save_pretrained(model, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["modality"], config["patch_size"], config["stride"], config["num_channels"]) == ("image", 16, 8, 1)
    assert "hop_samples" not in config
    assert config["architecture"]["init_args"]["skip_steps"] == 1
    back = cpc.load_pretrained(tmp_path)
    assert describe(back) == describe(model)
    assert (back.steps, back.negatives) == (model.steps, "mixed_excluding")
    assert len(back.predictors) == len(context.directions)
    x = torch.rand(2, 1, 32, 32)
    assert torch.equal(back(x).contexts, model.eval()(x).contexts)
    assert torch.equal(back.loss(x).loss_nats, model.loss(x).loss_nats)


class Killed(BaseException):
    """Stands for a kill: from then on, nothing changes a file any more."""


def kill_at(change: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Be killed just before that change: changes are renames, removals and the writing of weights."""
    num_changes = 0

    def dying(function: Callable[..., Any]) -> Callable[..., Any]:
        def act(*arguments: Any, **options: Any) -> Any:
            nonlocal num_changes
            num_changes += 1
            if num_changes > change:
                raise Killed
            return function(*arguments, **options)

        return act

    monkeypatch.setattr("os.replace", dying(os.replace))
    monkeypatch.setattr("pathlib.Path.unlink", dying(Path.unlink))
    monkeypatch.setattr("cpc.checkpoint.save_file", dying(checkpoint.save_file))


def dim_of(folder: Path) -> int:
    return cpc.load_pretrained(folder).context.dim


def test_a_save_killed_at_any_point_leaves_one_model_whole(tmp_path: Path) -> None:
    """Old and new differ in shape, so weights of one and config of the other could not be loaded."""
    found = []
    for change in range(10):
        folder = tmp_path / str(change)
        cpc.save_pretrained(small(context_dim=6), folder)
        with pytest.MonkeyPatch.context() as monkeypatch:
            kill_at(change, monkeypatch)
            try:
                cpc.save_pretrained(small(context_dim=7), folder)
                break
            except Killed:
                pass
        found.append(dim_of(folder))
        with pytest.MonkeyPatch.context() as monkeypatch:  # killed once more, before the first save was tidied up
            kill_at(1, monkeypatch)
            with pytest.raises(Killed):
                cpc.save_pretrained(small(context_dim=8), folder)
        assert dim_of(folder) == found[-1]
        cpc.save_pretrained(small(context_dim=9), folder)
        assert dim_of(folder) == 9
        assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert found == [6] * found.count(6) + [7] * found.count(7)
    assert set(found) == {6, 7}, "kills before and after the moment at which the new model counts"


def test_a_save_that_fails_leaves_the_old_model_and_nothing_else(tmp_path: Path) -> None:
    cpc.save_pretrained(small(), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(TypeError, match="not JSON serializable"):
        cpc.save_pretrained(small(context_dim=7), tmp_path, provenance={"manifest": tmp_path})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_damage_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no model"):
        cpc.load_pretrained(tmp_path / "nowhere")
    weights = tmp_path / "model.safetensors"
    cpc.save_pretrained(small(), tmp_path)
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(ValueError, match=r"not the file that config\.json describes"):
        cpc.load_pretrained(tmp_path)
    weights.unlink()
    with pytest.raises(ValueError, match=r"no model\.safetensors"):
        cpc.load_pretrained(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(config.read_text()[:-10])
    with pytest.raises(ValueError, match=r"config\.json is no JSON"):
        cpc.load_pretrained(tmp_path)


def test_files_of_two_exports_are_told_apart(tmp_path: Path) -> None:
    """Of the same shape, so that nothing but the hash could tell."""
    one, other = small(), small()
    torch.nn.init.zeros_(other.predictor.linear.weight)
    cpc.save_pretrained(one, tmp_path / "one")
    cpc.save_pretrained(other, tmp_path / "other")
    (tmp_path / "one" / "model.safetensors").replace(tmp_path / "other" / "model.safetensors")
    with pytest.raises(ValueError, match=r"not the file that config\.json describes: .*of another export"):
        cpc.load_pretrained(tmp_path / "other")


def edited(folder: Path, **changes: object) -> None:
    cpc.save_pretrained(small(), folder)
    config = json.loads((folder / "config.json").read_text())
    architecture = config["architecture"]["init_args"]
    for name, value in changes.items():
        if name == "format_version":
            config[name] = value
        elif name == "encoder_class":
            architecture["encoder"]["class_path"] = value
        else:
            architecture["encoder"]["init_args"][name] = value
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dim": 9}, "does not fit its architecture"),
        ({"format_version": 99}, "format_version 99, this cpc reads up to 1"),
        ({"encoder_class": "os.system"}, "outside the trusted packages cpc"),
        ({"encoder_class": "cpc.encoders.Nothing"}, r"no class cpc\.encoders\.Nothing"),
        ({"encoder_class": "cpc.cli.main"}, "is no torch module"),
        ({"wideness": 3}, "does not take the arguments"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(tmp_path: Path, changes: dict, message: str) -> None:
    edited(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        cpc.load_pretrained(tmp_path)
