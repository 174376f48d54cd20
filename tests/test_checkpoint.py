import hashlib
import inspect
import json
import math
import os
import re
import zipfile
from collections.abc import Callable
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch
from refusals import SAVED, Code, refuses
from safetensors.torch import load_file, save_file
from torch import nn

import cpc
from benchmarks.extreme.kernels import Quadratic
from benchmarks.extreme.softmax import SoftmaxSampler
from benchmarks.extreme.sparse_encoder import SparseEncoder
from cpc import CPC, checkpoint
from cpc.candidates import ClassTable
from cpc.candidates.kernels import RandomFourier
from cpc.candidates.samplers import TwoLevel, Unigram
from cpc.checkpoint import read_checkpoint
from cpc.config.argument_rules import Choices, Count, Odd, Range, _rules
from cpc.config.description import build, describe
from cpc.contexts import GRU, LSTM, CausalTransformer, PixelCNN, StateSpace
from cpc.data import Audio
from cpc.encoders import (
    MFCC,
    AudioEncoder,
    FrameEncoder,
    GradientTrunk,
    LogMel,
    MelEncoder,
    PatchEncoder,
    ResNetTrunk,
    SentenceEncoder,
    SignalEncoder,
    TinyTrunk,
    TokenEncoder,
    VectorEncoder,
)
from cpc.losses import ClassTableLoss, Contrastive
from cpc.predictors import Bilinear, TransformerPredictor
from cpc.probes import Extraction, OnlineProbe, SupervisedProtocol
from cpc.probes.abx import ABXProtocol


def small(context_dim: int = 6) -> CPC:
    torch.manual_seed(0)
    encoder = AudioEncoder(dim=8, norm="layer")
    model = CPC(encoder, GRU(dim=context_dim), Bilinear(num_steps=3), Contrastive("same_speaker"))
    model.encoder.set_statistics(0.1, 2.0)
    return model


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    model = small()
    cpc.save_pretrained(model, tmp_path / "model", provenance={"step": 7})
    for folder in (tmp_path / "model", tmp_path):  # the folder itself, or a run folder around it
        back = cpc.load_pretrained(folder)
        assert not back.training
        assert back.loss_part.negatives == "same_speaker"
        x = torch.randn(2, 1600)
        assert torch.equal(back(x).contexts, model.eval()(x).contexts)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert (config["format_version"], config["sample_rate_hz"], config["hop_samples"]) == (1, 16000, 160)
    assert config["provenance"] == {"step": 7}


@pytest.mark.parametrize("context", [GRU(8), LSTM(8, num_layers=2), CausalTransformer(8, num_heads=2)])
@pytest.mark.parametrize(
    "predictor", [Bilinear(2), TransformerPredictor(2, 2), TransformerPredictor(2, 2, shared_across_steps=True)]
)
def test_every_part_describes_itself(context: nn.Module, predictor: nn.Module, tmp_path: Path) -> None:
    """Each __init__ argument is kept under its own name, or as a part: what `describe` relies on."""
    description = describe(CPC(AudioEncoder(dim=8), build(describe(context)), build(describe(predictor))))
    rebuilt = build(json.loads(json.dumps(description)))
    assert describe(rebuilt) == description
    cpc.save_pretrained(rebuilt, tmp_path)
    x = torch.randn(2, 1600)
    assert torch.equal(cpc.load_pretrained(tmp_path)(x).queries[""], rebuilt.eval()(x).queries[""])


@pytest.mark.parametrize("encoder", [AudioEncoder(8), LogMel(), MFCC(), VectorEncoder(3)])
def test_every_encoder_describes_itself(encoder: nn.Module, tmp_path: Path) -> None:
    assert describe(build(json.loads(json.dumps(describe(encoder))))) == describe(encoder)
    cpc.save_pretrained(CPC(encoder, GRU(8), Bilinear(2)), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["modality"] == ("vectors" if isinstance(encoder, VectorEncoder) else "audio")
    assert (config["sample_rate_hz"], config["hop_samples"]) == (encoder.sample_rate_hz, encoder.hop_samples)


@pytest.mark.parametrize("trunk", [TinyTrunk(8, 1, (4, 1), (8, 8), "layer"), ResNetTrunk(18, "layer", num_channels=1)])
def test_a_model_of_images_comes_back(trunk: nn.Module, tmp_path: Path) -> None:
    """Parts within parts, tuples that JSON makes lists of, and a network and predictor for every direction."""
    model = CPC(
        PatchEncoder(build(describe(trunk)), 16, 8),
        PixelCNN(8, 1, 4, ("down", "left")),
        Bilinear(1),
        Contrastive("mixed_excluding", skip_steps=1),
    )
    model.encoder.set_statistics(torch.tensor([0.25]), torch.tensor([0.125]))
    cpc.save_pretrained(model, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["modality"], config["patch_size"], config["stride"], config["num_channels"]) == ("image", 16, 8, 1)
    assert "hop_samples" not in config
    assert config["architecture"]["init_args"]["loss"]["init_args"]["skip_steps"] == 1
    back = cpc.load_pretrained(tmp_path)
    assert describe(back) == describe(model)
    assert (back.steps, back.loss_part.negatives) == (model.steps, "mixed_excluding")
    assert len(back.predictors) == 2
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


@pytest.mark.parametrize("context", [GRU, CausalTransformer])
def test_numbers_of_numpy_are_saved_as_numbers(context: Any, tmp_path: Path, unchecked_types: None) -> None:
    sizes = {"kernels": np.array([10, 8]), "strides": np.array([5, 4]), "paddings": np.array([3, 2])}
    model = cpc.CPC(
        AudioEncoder(np.int64(4), np.int64(8000), **sizes),
        context(np.int64(16), num_layers=np.int32(2), dropout=np.float32(0.5)),
        Bilinear(steps=np.array([1, 3]), dropout=np.float32(0.25)),
        Contrastive(num_negatives=np.int64(4), skip_steps=np.int64(1)),
    )
    settings = Audio(manifest="m", batch_size=np.int64(3)).saved_settings
    cpc.save_pretrained(model, tmp_path, provenance={"data": settings, "bound": np.array([0.5])})
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["provenance"]["bound"] == [0.5]
    assert config["architecture"]["init_args"]["encoder"]["init_args"]["kernels"] == [10, 8]
    assert describe(cpc.load_pretrained(tmp_path)) == describe(model)
    torch.save([describe(model), settings], tmp_path / "checkpoint")
    torch.load(tmp_path / "checkpoint", weights_only=True)  # as checkpoints of runs are read


def test_a_save_that_fails_leaves_the_old_model_and_nothing_else(tmp_path: Path) -> None:
    cpc.save_pretrained(small(), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(TypeError, match="not JSON serializable"):
        cpc.save_pretrained(small(context_dim=7), tmp_path, provenance={"manifest": tmp_path})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_damage_is_named(tmp_path: Path) -> None:
    refuses("holds no model", cpc.load_pretrained, tmp_path / "nowhere")
    weights = tmp_path / "model.safetensors"
    cpc.save_pretrained(small(), tmp_path)
    weights.write_bytes(weights.read_bytes()[:-10])
    refuses(r"not the file that config\.json describes", cpc.load_pretrained, tmp_path)
    weights.unlink()
    refuses(r"model\.safetensors is missing", cpc.load_pretrained, tmp_path)
    config = tmp_path / "config.json"
    config.write_text(config.read_text()[:-10])
    refuses(r"config\.json is not JSON", cpc.load_pretrained, tmp_path)


def refused_checkpoint(path: Path, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refusal:
        read_checkpoint(path)
    assert str(path) in str(refusal.value)
    assert len(str(refusal.value).splitlines()) == 1  # and none of torch's advice to read it all the same


@pytest.mark.parametrize("is_zip", [True, False], ids=["as torch saves", "of old"])
def test_a_checkpoint_with_code_is_refused_and_the_code_not_run(tmp_path: Path, is_zip: bool) -> None:
    path, touched = tmp_path / "last.ckpt", tmp_path / "touched"
    torch.save(SAVED | {"callbacks": Code(touched)}, path, _use_new_zipfile_serialization=is_zip)
    refused_checkpoint(path, r"holds posix\.mkdir, .*could run code" if is_zip else "cannot be read: cut off")
    assert not touched.exists()
    torch.load(path, weights_only=False)
    assert touched.exists(), "the file would have done it"


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    torch.save(SAVED, path)
    whole = path.read_bytes()
    assert torch.equal(read_checkpoint(path)["state_dict"]["w"], SAVED["state_dict"]["w"])
    middle = whole.index(torch.arange(100.0, 110.0).numpy().tobytes())
    flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]  # torch.load does not see it
    for content in (b"", whole[: len(whole) // 2], whole[:-10], flipped, b"hello", bytes(5000), b"PK\x03\x04"):
        path.write_bytes(content)
        refused_checkpoint(path, "cannot be read: cut off, damaged, or no checkpoint at all")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("photograph", "of a cat")
    refused_checkpoint(path, "cannot be read")
    torch.save([1, 2], path)
    refused_checkpoint(path, "was not written by cpc pretrain: it lacks global_step")
    with pytest.raises(FileNotFoundError, match=r"nowhere\.ckpt"):
        read_checkpoint(tmp_path / "nowhere.ckpt")


def rewrite(folder: Path, config: Any = None, weights: dict[str, torch.Tensor] | bytes | None = None) -> None:
    """A model folder whose hash is right all the same: what somebody who means ill would hand over."""
    if isinstance(weights, dict):
        save_file(weights, folder / "model.safetensors")
    elif weights is not None:
        (folder / "model.safetensors").write_bytes(weights)
    if config is None:
        config = json.loads((folder / "config.json").read_text())
        config["sha256"] = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))


def refused_model(folder: Path, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refusal:
        cpc.load_pretrained(folder)
    assert str(folder) in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("predictors.0.linear.weight", lambda w: w.index_fill(0, torch.tensor([1]), torch.nan), "not finite"),
        ("encoder.input_std", lambda w: -torch.inf * w, "not finite"),
        ("context.layers.bias_hh_l0", lambda w: w.double() + 1e300, "not finite"),  # once it is float32
        ("predictors.0.linear.weight", lambda w: w.long(), "torch.int64.* in the file, .*floating point"),
        ("is_initialised", lambda w: w.float(), "floating point.* in the file, .*torch.bool"),
        ("context.layers.bias_hh_l0", lambda w: w[:3], r"\(3,\).* in the file, .*\(18,\)"),
    ],
)
def test_weights_that_cannot_be_right_are_refused_by_name(tmp_path: Path, name: str, change: Any, message: str) -> None:
    cpc.save_pretrained(small(), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    rewrite(tmp_path, weights=weights | {name: change(weights[name])})
    refused_model(tmp_path, message)
    refused_model(tmp_path, re.escape(name))


def test_weights_of_another_precision_are_cast(tmp_path: Path) -> None:
    cpc.save_pretrained(small(), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    rewrite(tmp_path, weights={k: w.bfloat16() if w.is_floating_point() else w for k, w in weights.items()})
    assert cpc.load_pretrained(tmp_path).predictor.weights.dtype == torch.float32


def test_a_law_may_know_the_logarithm_of_zero(tmp_path: Path) -> None:
    proposal = Unigram(torch.arange(9))
    classes = ClassTableLoss(ClassTable(9, 4), "sampled_softmax", proposal, 3)
    cpc.save_pretrained(CPC(TokenEncoder(9, 4), GRU(4), Bilinear(1), classes), tmp_path)
    back = cpc.load_pretrained(tmp_path).loss_part.sampler
    assert back.log_q[0] == -torch.inf
    assert torch.equal(back.log_q, proposal.log_q)


@pytest.mark.parametrize(
    "content", [b"", b"no weights at all", bytes(64), b"\xff" * 100, (10**9).to_bytes(8, "little") + b"{}"]
)
def test_broken_safetensors_are_named(tmp_path: Path, content: bytes) -> None:
    cpc.save_pretrained(small(), tmp_path)
    rewrite(tmp_path, weights=content)
    refused_model(tmp_path, r"model\.safetensors: (cannot be read|is empty)")


def nested(depth: int) -> Any:
    found: Any = 8
    for _ in range(depth):
        found = {"class_path": "cpc.contexts.GRU", "init_args": {"dim": found}}
    return found


ENCODER = ("architecture", "init_args", "encoder")
OPTIONS, CLASS = (*ENCODER, "init_args"), (*ENCODER, "class_path")
LOSS = ("architecture", "init_args", "loss", "init_args")


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ((), [], "format_version None"),
        ((), "[" * 100_000, r"config\.json is not JSON"),
        (("sha256",), None, r"lacks sha256 \(str\)"),
        (("provenance",), {"data": []}, r"lacks provenance\.data"),
        (("modality",), "smell", "modality='smell' must be audio"),
        (("sample_rate_hz",), 8000, "sample_rate_hz=8000 must be 16000"),
        (("architecture",), {}, "does not describe a part"),
        (("architecture",), nested(1), "GRU is not a CPC"),
        (("architecture", "init_args", "encoder"), None, "which is not a valid encoder"),
        (("architecture", "init_args", "context"), nested(300), "does not describe a model that can be built"),
        ((*LOSS, "shared_across_steps"), "no", "takes shared_across_steps: bool"),
        ((*OPTIONS, "dim"), 10**6, "far more numbers"),
        ((*OPTIONS, "dim"), 10**30, "too large"),
        (("format_version",), 99, "format_version 99, this cpc reads up to 1"),
        (CLASS, "os.system", "outside the trusted packages cpc"),
        (CLASS, "cpc.encoders.Nothing", r"no class cpc\.encoders\.Nothing"),
        (CLASS, "cpc.encoders.backbone.copy", "is not a Module"),
        (CLASS, "cpc.cli.main", "is not a part of a model: parts are in cpc.model, cpc.enc"),
        # It would trust whom it is told to.
        (CLASS, "cpc.interop.s3prl.UpstreamExpert", "is not a part of a model"),
        ((*OPTIONS, "wideness"), 3, "does not take the arguments"),
        ((*OPTIONS, "dim"), 9, "does not fit its architecture"),
    ],
)
def test_a_tampered_config_is_refused(
    tmp_path: Path, unchecked_types: None, place: tuple[str, ...], value: Any, message: str
) -> None:
    cpc.save_pretrained(small(), tmp_path)
    whole = json.loads((tmp_path / "config.json").read_text())
    inner = whole
    for name in place[:-1]:
        inner = inner[name]
    if place:
        inner[place[-1]] = value
    rewrite(tmp_path, config=whole if place else value if value is not None else "null")
    refused_model(tmp_path, message)


@pytest.mark.parametrize(
    ("name", "value"), [("exchange", "ring"), ("anchor", True), ("anchor_weight", 2.0), ("anchor", "gather")]
)
def test_options_that_losses_no_longer_have_may_only_be_what_all_do(tmp_path: Path, name: str, value: Any) -> None:
    cpc.save_pretrained(small(), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    options = config["architecture"]["init_args"]["loss"]["init_args"]
    options |= {"exchange": "gather", "anchor": False, "anchor_weight": 0.3}  # what older versions wrote
    rewrite(tmp_path, config=config)
    assert cpc.load_pretrained(tmp_path).loss_part.negatives == "same_speaker"
    options[name] = value
    rewrite(tmp_path, config=config)
    refused_model(tmp_path, rf"`loss\.{name}`={value!r} is no longer an option, .*: leave it out")


def test_none_is_what_an_argument_may_be() -> None:
    arguments = {"in_dim": 8, "dim": 8, "bottleneck_dim": None, "stride": 1, "norm": "none", "branch_scale": 1.0}
    description = {"class_path": "cpc.encoders.resnet.ResidualBlock", "init_args": arguments}
    assert len(build(description).convs) == 2


NUMBERS = {"num_heads": 2, "input_dim": 3, "num_features": 3, "num_tokens": 3, "num_classes": 3, "channels": 3}
PARTS = [
    *(AudioEncoder, LogMel, MFCC, VectorEncoder, SparseEncoder, TokenEncoder, TinyTrunk, ResNetTrunk, StateSpace),
    *(GRU, LSTM, CausalTransformer, PixelCNN, Bilinear, TransformerPredictor, TwoLevel, SentenceEncoder, ClassTable),
    *(FrameEncoder, SignalEncoder, GradientTrunk, MelEncoder, SoftmaxSampler, RandomFourier, Quadratic),
]


@pytest.mark.parametrize("part", PARTS)
def test_sizes_below_one_are_refused_by_name(part: type[nn.Module], unchecked_types: None) -> None:
    """Every argument that is a number of something, of every part, on the way into a model."""
    signature = inspect.signature(part).parameters
    given = {name: number for name, number in NUMBERS.items() if name in signature}
    given |= {"dim": 8} if "dim" in signature else {}
    given |= {"num_frequencies": 4} if "num_frequencies" in signature else {}
    sizes = [name for name, each in signature.items() if each.annotation in (int, int | None, Count, Odd, Count | None)]
    assert sizes

    def connected(**changed: int) -> None:
        made = part(**given | changed)
        if hasattr(made, "connect"):
            made.connect(*[8] * len(inspect.signature(made.connect).parameters))

    connected()
    for name in set(sizes) - {"num_deltas", "seed"}:  # 0 of them is a number, too
        refuses(rf"\b{name}=0\b", connected, **{name: 0})


CHECKED = [part for part in PARTS if part not in (SoftmaxSampler, SparseEncoder)]  # which have no rules of their own


@pytest.mark.parametrize("part", [*CHECKED, Contrastive, OnlineProbe, Extraction, SupervisedProtocol, ABXProtocol])
def test_arguments_beyond_their_rules_are_refused_by_name(part: Any, unchecked_types: None) -> None:
    """Choices that there are not, and the nearest number outside of every range, before anything else is looked at."""
    signature = inspect.signature(part).parameters.values()
    needed = {each.name: None for each in signature if each.default is inspect.Parameter.empty}
    of_part = get_type_hints(part if is_dataclass(part) else part.__init__, include_extras=True)
    beyond = [
        (name, value)
        for name, annotation in of_part.items()
        for _, rule in _rules(annotation)
        for value in (
            ["none of them"]
            if isinstance(rule, Choices)
            else [rule.least - (not rule.is_open), rule.most + (not rule.is_below)]
            if isinstance(rule, Range)
            else []
        )
        if value != math.inf
    ]
    assert beyond
    for name, value in beyond:
        refuses(rf"\b{name}`?={re.escape(repr(value))} (must|is not|is too la)", part, **needed | {name: value})
