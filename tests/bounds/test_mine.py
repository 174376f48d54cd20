import math

import pytest
import torch
from torch import Tensor

from cpc.bounds.estimators import MovingAverageGradient, donsker_varadhan


def gradient(objective: Tensor, scores: Tensor) -> Tensor:
    (scores_grad,) = torch.autograd.grad(objective, scores)
    return scores_grad


def test_the_value_is_donsker_varadhan_and_the_gradient_divides_by_the_average() -> None:
    """Section 3.2 of MINE: E[grad s] - E[exp(s) grad s] / average of E[exp s]."""
    decay, objective, average = 0.8, MovingAverageGradient(0.8), None
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        scores = torch.randn(4, 4, generator=generator, dtype=torch.float64, requires_grad=True)
        value = objective(scores)
        is_negative = ~torch.eye(4, dtype=torch.bool)
        mean_exp = scores.detach().exp()[is_negative].mean()
        average = mean_exp if average is None else decay * average + (1 - decay) * mean_exp
        expected = torch.eye(4).double() / 4 - is_negative * scores.detach().exp() / 12 / average
        assert value.item() == pytest.approx(donsker_varadhan(scores).nats.item())
        assert torch.allclose(gradient(value, scores), expected, atol=1e-12)


def test_without_memory_it_is_the_plain_gradient() -> None:
    objective = MovingAverageGradient(0)
    for seed in range(2):
        scores = torch.randn(4, 4, generator=torch.Generator().manual_seed(seed), requires_grad=True)
        plain = gradient(donsker_varadhan(scores).nats, scores)
        assert torch.allclose(gradient(objective(scores), scores), plain, atol=1e-6)


@pytest.mark.parametrize("decay", [-0.1, 1.0, math.nan])
def test_decay(decay: float) -> None:
    with pytest.raises(ValueError, match=f"decay={decay}"):
        MovingAverageGradient(decay)
