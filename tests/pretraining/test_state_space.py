"""A state-space context through the real commands: chunks of a batch, weight decay, resuming, and other precisions."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from cpc.checkpoint import load_pretrained, save_pretrained
from cpc.cli import main
from cpc.contexts import GRU
from cpc.contexts.context import time_constants
from cpc.encoders import SignalEncoder
from cpc.model import CPC
from cpc.predictors import Bilinear
from cpc.pretraining.parameter_groups import parameter_groups


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Path]:
    """Start a run on six noisy oscillations, with steps, the anchor and batches in chunks."""
    rng = np.random.default_rng(0)
    x = np.sin(np.arange(400) * rng.uniform(0.2, 0.4, (6, 1)))[..., None] + 0.3 * rng.normal(size=(6, 400, 1))
    np.savez(tmp_path / "signals.npz", x=x.astype(np.float32), group=np.arange(6), sample_rate_hz=20.0)
    encoder = {"channels": 1, "dim": 8, "sample_rate_hz": 20.0, "kernels": [4], "strides": [2]}
    content: dict[str, Any] = {
        "model": {
            "encoder": {"class_path": "cpc.encoders.SignalEncoder", "init_args": encoder},
            "context": {"class_path": "cpc.contexts.StateSpace", "init_args": {"dim": 8, "num_layers": 2}},
            "predictor": {"class_path": "cpc.predictors.Bilinear", "init_args": {"steps": [3, 9]}},
            "loss": {"class_path": "cpc.losses.Contrastive", "init_args": {"anchor": True}},
            "num_chunks": 2,
        },
        "data": {
            "class_path": "cpc.data.Signals",
            "init_args": {
                "source": str(tmp_path / "signals.npz"),
                "window_seconds": 5.0,
                "batch_size": 4,
                "eval_batches": 1,
                "valid_share": 0.34,
            },
        },
        "trainer": {"max_steps": 3, "accelerator": "cpu", "enable_progress_bar": False, "logger": False},
        "record_every_steps": 1,
        "eval_every_steps": 3,
        "checkpoint_every_steps": 3,
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(content))

    def run(*options: str) -> Path:
        main(["pretrain", "--config", str(tmp_path / "config.yaml"), "--run_dir", str(tmp_path / "run"), *options])
        return tmp_path / "run"

    return run


def decays(folder: Path) -> list[float]:
    checkpoint = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    return [group["weight_decay"] for group in checkpoint["optimizer_states"][0]["param_groups"]]


def test_weight_decay_leaves_time_constants(run: Callable[..., Path]) -> None:
    """A decay that multiplies every other weight by 1 - 0.001 * 900 = 0.1 per step."""
    folder = run("--model.optimiser", "adamw", "--model.learning_rate", "1e-3", "--model.weight_decay", "900")
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
    run("--model.optimiser", "adamw", "--model.weight_decay", "0.5", "--trainer.max_steps", "4", "--ckpt_path", "last")
    assert decays(folder) == [0.5, 0.0]


def test_models_without_time_constants_have_one_group() -> None:
    model = CPC(SignalEncoder(channels=1, dim=8, sample_rate_hz=20.0), GRU(8), Bilinear(2))
    (group,) = parameter_groups(model)
    assert [id(each) for each in group["params"]] == [id(each) for each in model.parameters()]


def test_weights_of_16_bits_give_the_same_contexts(run: Callable[..., Path], tmp_path: Path) -> None:
    """Rounding also the steps would move the phase of the fastest mode by a tenth of a radian within its memory."""
    model = load_pretrained(run("--trainer.max_steps", "1"))
    save_pretrained(model, tmp_path / "half", dtype=torch.float16)
    rounded = load_pretrained(tmp_path / "half")
    state = rounded.state_dict()
    exact = {name for name, weight in model.named_parameters() if torch.equal(weight, state[name])}
    assert exact >= time_constants(model)
    z = torch.randn(2, 1000, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        contexts, found = model.context(z)[0], rounded.context(z)[0]
    assert float((found - contexts).square().mean() / contexts.var()) < 1e-3**2
