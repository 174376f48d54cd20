"""Random kills and restarts end with the weights of the run that nobody disturbs.

A minute and a half, so that the slow tests fit their time; CPC_SOAK_MINUTES=10 is the ten-minute form, and
`python -m benchmarks.soak --minutes 60` the hour.
"""

import os
import subprocess
import sys
from json import loads

import pytest


@pytest.mark.slow
def test_random_kills_lose_nothing() -> None:
    minutes = os.environ.get("CPC_SOAK_MINUTES", "1.5")
    command = [sys.executable, "-m", "benchmarks.soak", "--minutes", minutes]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 * float(minutes) + 600)
    assert done.returncode == 0, done.stderr
    figures = loads(done.stdout.splitlines()[-1])
    assert figures["kills"] >= 1
    assert figures["survived"] == figures["kills"], done.stdout
    assert figures["weights_equal"], done.stdout
    assert figures["records_equal"], done.stdout
    assert figures["most_repeated_steps"] <= 20  # what a checkpoint is behind
