"""A state-space context, and a far step only, through the real commands: chunks, weight decay, 16 bits, evaluation."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cpc import CPC, load_pretrained, save_pretrained
from cpc.cli import main
from cpc.contexts import GRU
from cpc.contexts.context import time_constants
from cpc.data.store.atomic import read_records
from cpc.encoders import SignalEncoder
from cpc.predictors import Bilinear
from cpc.pretraining.module import parameter_groups

OPTIONS = """--model.context=cpc.contexts.StateSpace --model.context.init_args.dim=8
    --model.context.init_args.num_layers=2 --model.predictor.init_args.steps=[3,9]
    --model.loss=cpc.losses.Contrastive --model.num_chunks=2
    --eval_every_steps=3 --checkpoint_every_steps=3""".split()


@pytest.fixture
def train(run: Callable[..., Path]) -> Callable[..., Path]:
    return partial(run, *OPTIONS)


def decays(folder: Path) -> list[float]:
    checkpoint = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    return [group["weight_decay"] for group in checkpoint["optimizer_states"][0]["param_groups"]]


def test_weight_decay_leaves_time_constants(train: Callable[..., Path]) -> None:
    """A decay that multiplies every other weight by 1 - 0.001 * 900 = 0.1 per step."""
    adam = ("--model.optimiser=adamw", "--model.learning_rate=1e-3")
    folder = train(*adam, "--model.weight_decay=900", "--trainer.max_steps=3")
    model = load_pretrained(folder)
    assert decays(folder) == [900.0, 0.0]
    assert len(time_constants(model)) == 6
    for name, weight in model.state_dict().items():
        if name.endswith("log_step"):  # log 0.001 to log 0.1 at the start; three steps of Adam move it by 0.003
            assert weight.min() > np.log(0.001) - 0.01
            assert weight.max() < np.log(0.1) + 0.01
            assert weight.mean() < -3.5
        elif name.endswith("frequency"):
            torch.testing.assert_close(weight, weight[:, :1].expand_as(weight), rtol=0, atol=0.02)
            assert float(weight[-1].mean()) == pytest.approx(15 * np.pi, abs=0.02)
        elif name.endswith("output.weight"):
            assert weight.abs().max() < 0.01
    # after a resume with another decay too
    train(*adam, "--model.weight_decay=0.5", "--trainer.max_steps=4", "--ckpt_path=last")
    assert decays(folder) == [0.5, 0.0]


def test_models_without_time_constants_have_one_group() -> None:
    model = CPC(SignalEncoder(channels=1, dim=8, sample_rate_hz=20.0), GRU(8), Bilinear(2))
    (group,) = parameter_groups(model)
    assert [id(each) for each in group["params"]] == [id(each) for each in model.parameters()]


def test_weights_of_16_bits_give_the_same_contexts(train: Callable[..., Path], tmp_path: Path) -> None:
    """Rounding also the steps would move the phase of the fastest mode by a tenth of a radian within its memory."""
    model = load_pretrained(train("--trainer.max_steps=1"))
    save_pretrained(model, tmp_path / "half", dtype=torch.float16)
    rounded = load_pretrained(tmp_path / "half")
    state = rounded.state_dict()
    exact = {name for name, weight in model.named_parameters() if torch.equal(weight, state[name])}
    assert exact >= time_constants(model)
    z = torch.randn(2, 1000, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        contexts, found = model.context(z)[0], rounded.context(z)[0]
    assert float((found - contexts).square().mean() / contexts.var()) < 1e-3**2


def test_a_far_step_is_trained_evaluated_and_recorded(config: dict[str, Any], run_dir: Path) -> None:
    records = read_records(run_dir / "bound.jsonl")
    assert {record["split"] for record in records} == {"train", "valid"}
    assert all(record["steps"] == [14] and len(record["mi_bound_nats"]) == 1 for record in records)
    model = load_pretrained(run_dir)
    assert [step.k for step in model.steps] == [14]
    assert model.predictor.weights.shape == (1, 8, 8)
    options = ["--data", config["data"]["init_args"]["source"], "--bank", "valid", "--num_batches", "1"]
    main(["evaluate", str(run_dir), *options, "--negatives", "mixed", "--estimators", "nwj"])
    found = json.loads((run_dir / "bound.json").read_text())
    for name in ("bounds", "estimates"):
        assert {(tuple(each["steps"]), *each["num_rows"]) for each in found[name]} == {((14,), 4 * (50 - 14))}
