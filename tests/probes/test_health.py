"""Variance and effective rank against closed forms and numpy; what counts as collapse."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from cpc.probes.health import effective_rank, health


def by_definition(x: np.ndarray) -> float:
    """Roy and Vetterli's formula on the singular values of LAPACK's SVD."""
    values = np.linalg.svd(x - x.mean(0), compute_uv=False)
    shares = values / values.sum()
    shares = shares[shares > 1e-15]
    return math.exp(-sum(share * math.log(share) for share in shares))


@pytest.mark.parametrize(("num_features", "dim"), [(200, 12), (10, 40), (2, 3)])
def test_effective_rank_is_that_of_the_definition(num_features: int, dim: int, generator: torch.Generator) -> None:
    x = torch.randn(num_features, dim, generator=generator) * torch.linspace(0.1, 3, dim) + 5
    assert effective_rank(x) == pytest.approx(by_definition(x.double().numpy()), rel=1e-5)


def test_effective_rank_of_equal_directions_counts_them() -> None:
    x = torch.cat([torch.eye(6), -torch.eye(6)])  # six orthogonal directions of equal length
    assert effective_rank(x) == pytest.approx(6)
    assert effective_rank(torch.cat([x, torch.zeros(12, 30)], 1)) == pytest.approx(6, rel=1e-6)
    assert effective_rank(torch.arange(9.0)[:, None] * torch.ones(5)) == pytest.approx(1, abs=1e-5)  # a line
    assert effective_rank(torch.ones(9, 5)) == 1


def test_variance_is_the_mean_over_dimensions(generator: torch.Generator) -> None:
    x = torch.randn(500, 7, generator=generator).double() * 3 + 2
    found = health(x)
    assert found.variance == pytest.approx(np.var(x.numpy(), axis=0, ddof=1).mean())
    assert found.relative_variance == pytest.approx(
        np.var(x.numpy(), axis=0, ddof=1).sum() / (x.numpy() ** 2).sum(1).mean()
    )
    assert not found.is_collapsed


def constant(generator: torch.Generator) -> Tensor:
    return torch.full((100, 8), 3.0) + 1e-3 * torch.randn(100, 8, generator=generator)


def on_a_line(generator: torch.Generator) -> Tensor:
    return torch.randn(100, 1, generator=generator) * torch.randn(1, 8, generator=generator)


def nonfinite_names(generator: torch.Generator) -> Tensor:
    x = torch.randn(100, 8, generator=generator)
    x[3, 4] = math.inf
    return x


@pytest.mark.parametrize("collapsed", [constant, on_a_line, nonfinite_names, lambda _: torch.zeros(100, 8)])
def test_collapse(collapsed: object, generator: torch.Generator) -> None:
    assert callable(collapsed)
    assert health(collapsed(generator)).is_collapsed


def test_two_dimensions_may_be_a_line(generator: torch.Generator) -> None:
    assert not health(torch.randn(100, 1, generator=generator) * torch.ones(1, 2)).is_collapsed


def test_many_features_are_sampled_evenly_and_no_random_number_is_drawn() -> None:
    x = torch.randn(5000, 4)
    before = torch.get_rng_state()
    found = health(x)
    assert torch.equal(torch.get_rng_state(), before)
    assert found.variance == pytest.approx(x[torch.linspace(0, 4999, 512).long()].var(0).mean().item(), rel=1e-6)


def test_a_single_feature_is_refused() -> None:
    with pytest.raises(ValueError, match="1 features have no variance"):
        health(torch.ones(1, 4))
