"""Random kills and restarts end with the weights of the run that nobody disturbs.

A minute of them; `python -m benchmarks.soak --minutes 60` is the hour.
"""

import subprocess
import sys
from json import loads

import pytest

MINUTES = 1


@pytest.mark.slow
def test_random_kills_lose_nothing() -> None:
    command = [sys.executable, "-m", "benchmarks.soak", "--minutes", str(MINUTES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 * MINUTES + 600)
    assert done.returncode == 0, done.stderr
    figures = loads(done.stdout.splitlines()[-1])
    assert figures["kills"] >= 3 * MINUTES  # 13 a minute on two cores beside other work
    assert figures["survived"] == figures["kills"], done.stdout
    assert figures["weights_equal"], done.stdout
    assert figures["records_equal"], done.stdout
    assert figures["most_repeated_steps"] <= 20  # what a checkpoint is behind
