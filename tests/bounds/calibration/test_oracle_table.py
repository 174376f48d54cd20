"""The table of facts.md, section 7 (docs/theory.md): InfoNCE with the exact critic in 20 dimensions, all pairs."""

import math
from collections.abc import Sequence

import pytest
import torch

from cpc.bounds.calibration.training import measure_exact
from cpc.bounds.estimators import info_nce
from cpc.bounds.tasks import make_task

FACTS = {  # true nats: mean and standard error for N = 16, 129, 512
    2.0: ((1.495, 0.038), (1.890, 0.018), (1.989, 0.019)),
    4.0: ((2.282, 0.030), (3.380, 0.020), (3.697, 0.024)),
    6.0: ((2.634, 0.016), (4.221, 0.014), (4.927, 0.015)),
    8.0: ((2.711, 0.012), (4.639, 0.008), (5.701, 0.015)),
    10.0: ((2.762, 0.005), (4.793, 0.004), (6.039, 0.009)),
}
NUMS_MATRICES = {16: 300, 129: 60, 512: 12}


@pytest.mark.parametrize(("information_nats", "tabled"), FACTS.items())
def test_the_exact_critic(information_nats: float, tabled: Sequence[tuple[float, float]]) -> None:
    """Within 3 combined standard errors."""
    generator = torch.Generator().manual_seed(0)
    exact = make_task("gaussian", information_nats, 20)
    for (num_candidates, num_matrices), (mean, error) in zip(NUMS_MATRICES.items(), tabled, strict=True):
        found = measure_exact(exact, ["info_nce"], num_candidates, num_matrices, generator)["info_nce"]
        assert abs(found.mean_nats - mean) < 3 * math.hypot(error, found.standard_error_nats)
        assert found.mean_nats < math.log(num_candidates)


@pytest.mark.parametrize("num_candidates", [16, 129])
def test_a_converged_critic_does_not_beat_the_exact_one(num_candidates: int) -> None:
    """x^T W y + v . y^2 from the exact W and v on, 100 steps of training: near the optimum on fresh pairs, not above.

    Read on the same pairs as the exact critic, whose optimality a hundredth of a nat is then enough to contradict.
    """
    task, generator = make_task("gaussian", 4.0, 20), torch.Generator().manual_seed(0)
    rho = (-math.expm1(-2 * task.mutual_information_nats / 20)) ** 0.5
    weight = (rho / (1 - rho**2) * torch.eye(20, dtype=torch.float64)).requires_grad_()
    square = torch.full((20,), -(rho**2) / (2 - 2 * rho**2), dtype=torch.float64, requires_grad=True)
    x, y = task.sample(5, generator)
    own = (x @ weight @ y.T + y.square() @ square).log_softmax(1)
    assert torch.allclose(own, task.log_density_ratio(x, y).log_softmax(1))  # it does begin at the exact critic
    optimiser = torch.optim.Adam([weight, square], 5e-3)
    for _ in range(100):
        x, y = task.sample(num_candidates, generator)
        optimiser.zero_grad()
        (-info_nce(x @ weight @ y.T + y.square() @ square).nats).backward()
        optimiser.step()
    gains = []
    for _ in range(12_000 // num_candidates):
        x, y = task.sample(num_candidates, generator)
        trained = info_nce(x @ weight @ y.T + y.square() @ square).nats.detach()
        gains.append(trained - info_nce(task.log_density_ratio(x, y)).nats)
    gain, error = torch.stack(gains).mean(), torch.stack(gains).std() / len(gains) ** 0.5
    assert error < 0.02
    assert -0.3 < gain < 3 * error
