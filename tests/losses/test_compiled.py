"""Compiled models are those of eager mode; see `compiled_process.py`."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("compiled_process.py")


@pytest.mark.slow
def test_compiled() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
