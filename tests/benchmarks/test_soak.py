"""Random kills and restarts end with the weights of the run that nobody disturbs.

Four minutes, so that the slow tests fit their time; CPC_SOAK_MINUTES=10 is the ten-minute form, and
`python -m benchmarks.soak --minutes 60` the hour.
"""

import os
import subprocess
import sys
from json import loads

import pytest


@pytest.mark.slow
def test_random_kills_lose_nothing() -> None:
    minutes = float(os.environ.get("CPC_SOAK_MINUTES", "4"))
    command = [sys.executable, "-m", "benchmarks.soak", "--minutes", str(minutes)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 * minutes + 600)
    assert done.returncode == 0, done.stderr
    figures = loads(done.stdout.splitlines()[-1])
    assert figures["kills"] >= 3 * minutes  # 13 a minute on two cores beside other work
    assert figures["survived"] == figures["kills"], done.stdout
    assert figures["weights_equal"], done.stdout
    assert figures["records_equal"], done.stdout
    assert figures["most_repeated_steps"] <= 20  # what a checkpoint is behind
