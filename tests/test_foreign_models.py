"""Parts of the wrong kind, and checkpoints and descriptions that cpc did not write: one clear line before any work."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import refuses

from cpc.checkpoint import _CHECKPOINT_ENTRIES, read_checkpoint, read_config, save_pretrained
from cpc.contexts import GRU
from cpc.encoders import AudioEncoder
from cpc.interop.share import share
from cpc.losses import Contrastive
from cpc.model import CPC
from cpc.predictors import Bilinear
from cpc.pretraining.command import parse
from cpc.quickstart.recipe import part


def parts() -> dict[str, Any]:
    encoder = AudioEncoder(dim=2, kernels=(4,), strides=(4,), paddings=(0,))
    return {"encoder": encoder, "context": GRU(dim=2), "predictor": Bilinear(num_steps=1), "loss": Contrastive()}


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize("name", ["encoder", "context", "predictor", "loss"])
@pytest.mark.parametrize("other", [torch.nn.ReLU(), parts()["encoder"], parts()["context"], parts()["predictor"]])
def test_a_part_in_the_place_of_another_is_refused(name: str, other: torch.nn.Module) -> None:
    if type(other) is type(parts()[name]):
        CPC(**parts() | {name: other})
        return
    refuses(rf"model\.{name} is .*, which is not a valid {name}: it lacks", CPC, **parts() | {name: other})


def checkpoint(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, kind in _CHECKPOINT_ENTRIES.items():
        *within, last = name.split(".")
        inner = found
        for each in within:
            inner = inner.setdefault(each, {})
        inner[last] = changes.get(name, kind())
    return found


@pytest.mark.parametrize("name", list(_CHECKPOINT_ENTRIES))
def test_a_checkpoint_lacks_none_of_its_parts_and_counts_nothing_negative(name: str, tmp_path: Path) -> None:
    torch.save(checkpoint(), tmp_path / "a.ckpt")
    assert read_checkpoint(tmp_path / "a.ckpt") == checkpoint()
    for value in (None, -7):
        torch.save(checkpoint(**{name: value}), tmp_path / "a.ckpt")
        refuses(rf"a\.ckpt was not written by cpc pretrain: it lacks {name}", read_checkpoint, tmp_path / "a.ckpt")


@pytest.mark.parametrize("data", [[], None, 7, {"class_path": "cpc.data.Audio"}, {"class_path": 3, "init_args": {}}])
def test_a_provenance_that_does_not_name_its_data_is_refused(data: Any, tmp_path: Path) -> None:
    save_pretrained(CPC(**parts()), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert read_config(tmp_path)["provenance"] == {}
    share(tmp_path, license="mit", out=tmp_path / "card")  # an empty one is legal
    (tmp_path / "config.json").write_text(json.dumps(config | {"provenance": {"data": data}}))
    with pytest.raises(ValueError, match=r"config\.json lacks provenance\.data|does not describe the training data"):
        share(tmp_path, license="mit", out=tmp_path / "other")


@pytest.mark.parametrize("dim", [2_000_000, 10**9])
def test_widths_that_no_memory_holds_are_named(dim: int) -> None:
    model = {"encoder": part("encoders.AudioEncoder", dim=8), "context": part("contexts.GRU", dim=dim)}
    model["predictor"] = part("predictors.Bilinear", num_steps=1)
    data = part("data.Audio", manifest="nowhere")
    with pytest.raises(ValueError, match=r"a tensor of the model takes .*: lower the widths of model\.encoder"):
        parse({"model": model, "data": data, "trainer": {"max_steps": 1}})
