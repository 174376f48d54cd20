"""Runs of a small config: finished ones, and ones that end with an error; a file of other data defines `config`."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from cpc.cli import main
from cpc.pretraining.module import Pretraining
from cpc.quickstart.recipe import part

EVERY_TWO_STEPS = dict.fromkeys(("record_every_steps", "eval_every_steps", "checkpoint_every_steps"), 2)


def words_of(config: dict[str, Any], run_dir: Path, *options: str) -> list[str]:
    path = run_dir.with_name("config.yaml")
    path.write_text(yaml.safe_dump(config))
    return ["pretrain", "--config", str(path), "--run_dir", str(run_dir), *options]


@pytest.fixture
def command(config: dict[str, Any], tmp_path: Path) -> Callable[..., list[str]]:
    """The words of a command line that trains in a folder below `tmp_path`."""
    return lambda *options, name="run": words_of(config, tmp_path / name, *options)


@pytest.fixture
def run(command: Callable[..., list[str]], tmp_path: Path) -> Callable[..., Path]:
    def run(*options: str, name: str = "run") -> Path:
        main(command(*options, name=name))
        return tmp_path / name

    return run


@pytest.fixture(scope="module")
def run_dir(config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    main(words_of(config, folder))
    return folder


@pytest.fixture
def refused(command: Callable[..., list[str]], refusal: Callable[..., str]) -> Callable[..., str]:
    """Start a run of the test file's small config that must exit with status 2, and return what it prints on stderr."""
    return lambda *options: refusal(command(*options))


@pytest.fixture
def finished(run_dir: Path, tmp_path: Path) -> Path:
    return shutil.copytree(run_dir, tmp_path / "run")


@pytest.fixture
def break_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes training fail at a step, once."""

    def arrange(step: int) -> None:
        training_step = Pretraining.training_step

        def breaking(self: Pretraining, batch: object, index: int) -> object:
            if self.global_step == step:
                monkeypatch.setattr(Pretraining, "training_step", training_step)
                raise ValueError("broken on purpose")
            return training_step(self, batch, index)

        monkeypatch.setattr(Pretraining, "training_step", breaking)

    return arrange


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of ten noisy oscillations, in windows of 50 latents, with the single step k = 14."""
    folder = tmp_path_factory.mktemp("signals")
    rng = np.random.default_rng(0)
    x = np.sin(np.arange(400) * rng.uniform(0.2, 0.4, (10, 1)))[..., None] + 0.3 * rng.normal(size=(10, 400, 1))
    np.savez(folder / "signals.npz", x=x.astype(np.float32), group=np.arange(10), sample_rate_hz=20.0)
    sampling = {"window_seconds": 5.0, "batch_size": 4, "eval_batches": 1, "valid_share": 0.3}
    return EVERY_TWO_STEPS | {
        "model": {
            "encoder": part("encoders.SignalEncoder", channels=1, dim=8, sample_rate_hz=20.0, kernels=[4], strides=[2]),
            "context": part("contexts.GRU", dim=8),
            "predictor": part("predictors.Bilinear", steps=[14]),
        },
        "data": part("data.Signals", source=str(folder / "signals.npz"), **sampling),
        "trainer": {"max_steps": 4, "accelerator": "cpu", "enable_progress_bar": False, "logger": False},
    }
