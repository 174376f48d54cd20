"""A state-space context through the real commands: chunks of a batch, weight decay, resuming, and other precisions."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from cpc.checkpoint import load_pretrained, save_pretrained
from cpc.contexts import GRU
from cpc.contexts.context import time_constants
from cpc.encoders import SignalEncoder
from cpc.model import CPC
from cpc.predictors import Bilinear
from cpc.pretraining.module import parameter_groups

OPTIONS = """--model.context=cpc.contexts.StateSpace --model.context.init_args.dim=8
    --model.context.init_args.num_layers=2 --model.predictor.init_args.steps=[3,9]
    --model.loss=cpc.losses.Contrastive --model.num_chunks=2
    --eval_every_steps=3 --checkpoint_every_steps=3""".split()


@pytest.fixture
def run(run: Callable[..., Path]) -> Callable[..., Path]:
    return partial(run, *OPTIONS)


def decays(folder: Path) -> list[float]:
    checkpoint = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    return [group["weight_decay"] for group in checkpoint["optimizer_states"][0]["param_groups"]]


def test_weight_decay_leaves_time_constants(run: Callable[..., Path]) -> None:
    """A decay that multiplies every other weight by 1 - 0.001 * 900 = 0.1 per step."""
    adam = ("--model.optimiser=adamw", "--model.learning_rate=1e-3")
    folder = run(*adam, "--model.weight_decay=900", "--trainer.max_steps=3")
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
    run(*adam, "--model.weight_decay=0.5", "--trainer.max_steps=4", "--ckpt_path=last")
    assert decays(folder) == [0.5, 0.0]


def test_models_without_time_constants_have_one_group() -> None:
    model = CPC(SignalEncoder(channels=1, dim=8, sample_rate_hz=20.0), GRU(8), Bilinear(2))
    (group,) = parameter_groups(model)
    assert [id(each) for each in group["params"]] == [id(each) for each in model.parameters()]


def test_weights_of_16_bits_give_the_same_contexts(run: Callable[..., Path], tmp_path: Path) -> None:
    """Rounding also the steps would move the phase of the fastest mode by a tenth of a radian within its memory."""
    model = load_pretrained(run("--trainer.max_steps=1"))
    save_pretrained(model, tmp_path / "half", dtype=torch.float16)
    rounded = load_pretrained(tmp_path / "half")
    state = rounded.state_dict()
    exact = {name for name, weight in model.named_parameters() if torch.equal(weight, state[name])}
    assert exact >= time_constants(model)
    z = torch.randn(2, 1000, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        contexts, found = model.context(z)[0], rounded.context(z)[0]
    assert float((found - contexts).square().mean() / contexts.var()) < 1e-3**2
