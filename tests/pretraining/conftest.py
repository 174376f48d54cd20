"""Runs that end with an error before or during training."""

from collections.abc import Callable
from pathlib import Path

import pytest


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
