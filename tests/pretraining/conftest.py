"""Runs of a test file's small config: finished ones, and ones that end with an error.

A file that uses these fixtures defines `run` and `finished_once`.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cpc.pretraining.module import Pretraining


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
    """What `run` without options leaves where it runs, to continue or to spoil."""
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
