"""Runs of a small config: finished ones, and ones that end with an error.

A file of other data than noisy oscillations defines `run`, and one that uses `finished` also `finished_once`.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from cpc.cli import main
from cpc.pretraining.module import Pretraining
from cpc.quickstart.recipe import part

EVERY_TWO_STEPS = dict.fromkeys(("record_every_steps", "eval_every_steps", "checkpoint_every_steps"), 2)


@pytest.fixture
def run(oscillations: Path, tmp_path: Path) -> Callable[..., Path]:
    def run(*options: str, name: str = "run") -> Path:
        main(["pretrain", "--config", str(oscillations), "--run_dir", str(tmp_path / name), *options])
        return tmp_path / name

    return run


@pytest.fixture
def refused(run: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Start a run of the test file's small config that must exit with status 2, and return what it prints on stderr."""

    def refused(*options: str) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            run(*options)
        assert exit_.value.code == 2
        return capsys.readouterr().err

    return refused


@pytest.fixture
def finished(finished_once: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished_once, tmp_path / "run")


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
def oscillations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config for ten noisy oscillations, in windows of 50 latents, with the single step k = 14."""
    folder = tmp_path_factory.mktemp("signals")
    rng = np.random.default_rng(0)
    x = np.sin(np.arange(400) * rng.uniform(0.2, 0.4, (10, 1)))[..., None] + 0.3 * rng.normal(size=(10, 400, 1))
    np.savez(folder / "signals.npz", x=x.astype(np.float32), group=np.arange(10), sample_rate_hz=20.0)
    sampling = {"window_seconds": 5.0, "batch_size": 4, "eval_batches": 1, "valid_share": 0.3}
    content = EVERY_TWO_STEPS | {
        "model": {
            "encoder": part("encoders.SignalEncoder", channels=1, dim=8, sample_rate_hz=20.0, kernels=[4], strides=[2]),
            "context": part("contexts.GRU", dim=8),
            "predictor": part("predictors.Bilinear", steps=[14]),
        },
        "data": part("data.Signals", source=str(folder / "signals.npz"), **sampling),
        "trainer": {"max_steps": 4, "accelerator": "cpu", "enable_progress_bar": False, "logger": False},
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(content))
    return path
