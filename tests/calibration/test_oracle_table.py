"""The table of facts.md, section 7 (docs/theory.md): InfoNCE with the exact critic in 20 dimensions, all pairs."""

import math
from collections.abc import Sequence

import pytest
import torch

from cpc.bounds import optimal_reading_nats
from cpc.bounds.tasks import task_named
from cpc.calibration.measured import measure_exact
from cpc.calibration.training import train

FACTS = {  # true nats: mean and standard error for N = 16, 129, 512
    2.0: ((1.495, 0.038), (1.890, 0.018), (1.989, 0.019)),
    4.0: ((2.282, 0.030), (3.380, 0.020), (3.697, 0.024)),
    6.0: ((2.634, 0.016), (4.221, 0.014), (4.927, 0.015)),
    8.0: ((2.711, 0.012), (4.639, 0.008), (5.701, 0.015)),
    10.0: ((2.762, 0.005), (4.793, 0.004), (6.039, 0.009)),
}
NUMS_MATRICES = {16: 300, 129: 60, 512: 12}


@pytest.mark.parametrize(("information_nats", "tabled"), FACTS.items())
@pytest.mark.parametrize("task", ["gaussian", "cubic"])
def test_the_exact_critic(task: str, information_nats: float, tabled: Sequence[tuple[float, float]]) -> None:
    """Within 3 combined standard errors; bent variables have the same exact critic."""
    generator = torch.Generator().manual_seed(0)
    exact = task_named(task, information_nats, 20)
    for (num_candidates, num_matrices), (mean, error) in zip(NUMS_MATRICES.items(), tabled, strict=True):
        found = measure_exact(exact, ["info_nce"], num_candidates, num_matrices, generator)["info_nce"]
        assert abs(found.mean_nats - mean) < 3 * math.hypot(error, found.standard_error_nats)
        assert found.mean_nats < math.log(num_candidates)


def test_trained_critics_stay_below_the_optimum() -> None:
    """While the truth rises; the optimum is of many dimensions, and in 20 at most 0.17 nats higher (docs/theory.md)."""
    informations = (2.0, 4.0, 6.0)
    tasks = [task_named("gaussian", information, 20) for information in informations]
    levels = list(train(tasks, ["info_nce"], "separable", 32, 120, 50, seed=0))
    readings = [level.measured["info_nce"] for level in levels]
    for task, found in zip(tasks, readings, strict=True):
        exact = measure_exact(task, ["info_nce"], 32, 100, torch.Generator().manual_seed(1))["info_nce"]
        assert found.mean_nats < exact.mean_nats + 3 * math.hypot(found.standard_error_nats, exact.standard_error_nats)
        optimum = optimal_reading_nats(task.mutual_information_nats, 32)
        assert found.mean_nats < optimum + 0.17 + 3 * found.standard_error_nats
    assert 0.5 < readings[0].mean_nats < readings[1].mean_nats < readings[2].mean_nats
