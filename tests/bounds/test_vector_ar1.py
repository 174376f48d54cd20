import pytest
import torch

from cpc.bounds import BoundTally, VectorAR1
from cpc.losses import contrast


@pytest.mark.parametrize(
    ("coefficient", "dim", "step", "expected"),
    [(0.9, 16, 1, 13.286), (0.9, 16, 12, 0.665), (0.95, 16, 4, 8.711), (0.8, 4, 1, 2.043), (0.8, 4, 4, 0.367)],
)
def test_closed_form(coefficient: float, dim: int, step: int, expected: float) -> None:
    """Figures of facts.md section 7."""
    assert VectorAR1(coefficient, dim).mutual_information_nats(step) == pytest.approx(expected, abs=1e-3)


def test_samples_are_stationary_with_the_right_lag_correlation() -> None:
    x = VectorAR1(0.8, 2).sample(4000, 12, torch.Generator().manual_seed(0))
    assert x[:, 0].var().item() == pytest.approx(1, abs=0.05)
    assert x[:, -1].var().item() == pytest.approx(1, abs=0.05)
    assert (x[:, 3] * x[:, 5]).mean().item() == pytest.approx(0.8**2, abs=0.03)


def test_optimal_scores_are_the_log_density_ratio() -> None:
    """Against torch's own densities: log p(y | x) - log p(y)."""
    process = VectorAR1(0.7, 3)
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(4, 3, generator=generator), torch.randn(5, 3, generator=generator)
    a = 0.7**2
    for i in range(4):
        for j in range(5):
            conditional = torch.distributions.Normal(a * x[i].double(), (1 - a**2) ** 0.5).log_prob(y[j].double()).sum()
            marginal = torch.distributions.Normal(0.0, 1.0).log_prob(y[j].double()).sum()
            score = process.optimal_scores(x, y, step=2)[i, j]
            assert score.item() == pytest.approx((conditional - marginal).item(), abs=1e-9)


def test_independent_latents_read_zero_only_with_independent_candidates() -> None:
    """True information 0; an ideal critic that knows z_<=t reads more once its own past is a candidate (facts T12).

    Queries score every candidate of their own past at minus infinity (it cannot be z_{t+1}) and all others equally.
    """
    num_sequences, num_latents = 8, 32
    eye = torch.eye(num_sequences * num_latents).reshape(num_sequences, num_latents, -1)
    seen = torch.stack([eye[b].cumsum(0) for b in range(num_sequences)])  # [B, T, B*T]: one where z_<=t
    queries = (-100 * seen)[None]
    bounds = {}
    for strategy in ("mixed_excluding", "mixed", "sequence_only"):
        tally = BoundTally()
        tally.update(contrast(queries, eye, strategy=strategy))
        bounds[strategy] = tally.compute(strategy, "test").mi_bound_nats[0]
    assert bounds["mixed_excluding"] == pytest.approx(0, abs=1e-5)
    assert bounds["mixed"] == pytest.approx(0.06, abs=0.03)
    assert bounds["sequence_only"] > 0.8


def test_a_coefficient_that_is_not_stationary_is_refused() -> None:
    with pytest.raises(ValueError, match=r"coefficient=1\.0"):
        VectorAR1(1.0, 2)
