"""Compiled models and losses are those of eager mode; see `compiled_process.py`."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("compiled_process.py")


@pytest.mark.parametrize("what", ["loss", "model"])
def test_compiled(what: str) -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), what], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
