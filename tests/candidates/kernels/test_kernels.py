"""Feature maps against the kernels that they stand for, in the mean over their draws."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cpc.candidates.kernels import PositiveRandomFeatures, Quadratic, RandomFourier, RandomMaclaurin
from cpc.candidates.kernels.projections import random_projection

DIM = 8


def pair(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x, y = F.normalize(torch.randn(2, DIM, generator=generator), dim=1)
    return x, y


def test_quadratic_equals_its_kernel(generator: torch.Generator) -> None:
    kernel = Quadratic(DIM, alpha=3.0, beta=0.5)
    x, y = torch.randn(2, 5, DIM, generator=generator)
    for row, (a, b) in enumerate(zip(x.tolist(), y.tolist(), strict=True)):
        expected = 3 * sum(p * q for p, q in zip(a, b, strict=True)) ** 2 + 0.5
        assert float(kernel(x[row]) @ kernel(y[row])) == pytest.approx(expected, rel=1e-5)
    assert kernel.num_features == 37


def test_fourier_has_the_mean_and_the_variance_of_its_closed_form(generator: torch.Generator) -> None:
    """Var = (1 - e^{-nu r^2})^2 / (2 D); rows of variance 1 / nu, as printed in the paper, would miss both (facts T20).

    The frequencies of one map are independent: 16 of them are one estimate.
    """
    x, y = pair(generator)
    num_frequencies, num_estimates, nu = 16, 4000, 4.0
    kernel = RandomFourier(DIM, num_frequencies * num_estimates, nu)
    terms = (kernel(x) * kernel(y) * num_frequencies * num_estimates).reshape(2, num_estimates, num_frequencies).sum(0)
    estimates = terms.mean(1)
    squared_distance = float(((x - y) ** 2).sum())
    variance = (1 - math.exp(-nu * squared_distance)) ** 2 / (2 * num_frequencies)
    error = float(estimates.mean()) - math.exp(-nu * squared_distance / 2)
    assert abs(error) < 4 * math.sqrt(variance / num_estimates)
    assert float(estimates.var()) == pytest.approx(variance, rel=4 * math.sqrt(2 / num_estimates))


@pytest.mark.parametrize(
    ("kernel", "is_exponential"),
    [
        (RandomFourier(DIM, 4000, 2.0, "orthogonal"), False),
        (PositiveRandomFeatures(DIM, 40_000, 1.5, "gaussian"), True),
        (PositiveRandomFeatures(DIM, 4000, 1.5, "orthogonal"), True),
        (RandomMaclaurin(DIM, 100_000, 1.5), True),
    ],
)
def test_unbiased(kernel: Any, is_exponential: bool, generator: torch.Generator) -> None:
    x, y = pair(generator)
    terms = kernel(x) * kernel(y) * kernel.num_features
    if not is_exponential:
        terms = terms.reshape(2, -1).mean(0)  # cosine and sine of a frequency
    exponent = float(x @ y) if is_exponential else -0.5 * float(((x - y) ** 2).sum())
    expected = math.exp(kernel.nu * exponent)
    assert float(terms.mean()) == pytest.approx(expected, abs=4 * float(terms.std()) / math.sqrt(len(terms)))


def test_structured_rows_come_near_the_kernel(generator: torch.Generator) -> None:
    """SORF is a little biased: its lengths are fixed."""
    x, y = F.normalize(torch.randn(2, 64, generator=generator), dim=1)
    kernel = RandomFourier(64, 6400, 2.0, "structured")
    assert float(kernel(x) @ kernel(y)) == pytest.approx(math.exp(-float(((x - y) ** 2).sum())), abs=0.02)


def test_orthogonal_rows_vary_less_than_independent_ones(generator: torch.Generator) -> None:
    x, y = pair(generator)

    def variance(projection: str) -> float:
        kernel = RandomFourier(DIM, DIM * 500, 1.0, projection)
        return float((kernel(x) * kernel(y)).reshape(2, 500, DIM).sum((0, 2)).var())

    assert variance("orthogonal") < variance("gaussian")


def test_blocks_of_rows_are_orthogonal() -> None:
    for kind in ("orthogonal", "structured"):
        rows = random_projection(kind, 12, DIM, seed=0)
        gram = rows[:DIM] @ rows[:DIM].T
        assert (gram - torch.diag(gram.diagonal())).abs().max() < 1e-4
        assert (rows[:DIM] @ rows[DIM:].T).abs().max() > 0.1
    cut = random_projection("structured", 600, 6, seed=0)  # of rows of 8
    assert float((cut**2).sum(1).mean()) == pytest.approx(6, rel=0.1)


def test_positive_features_of_queries_differ_by_a_factor_alone(generator: torch.Generator) -> None:
    kernel = PositiveRandomFeatures(DIM, 16)
    x = torch.randn(4, DIM, generator=generator)
    ratio = kernel.of_queries(x) / kernel(x)
    torch.testing.assert_close(ratio, ratio[:, :1].expand_as(ratio), rtol=1e-4, atol=0)
    long = 30 * x
    assert (kernel(long) == 0).all()
    assert (kernel.of_queries(long).amax(1) == 1).all()


def test_two_maps_of_one_seed_are_one() -> None:
    x = torch.randn(3, DIM)
    assert torch.equal(RandomMaclaurin(DIM, 9, seed=4)(x), RandomMaclaurin(DIM, 9, seed=4)(x))
    assert not torch.equal(RandomFourier(DIM, 9, seed=4)(x), RandomFourier(DIM, 9, seed=5)(x))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomFourier(DIM, 0), "num_features=0"),
        (lambda: RandomFourier(DIM, 4, nu=0.0), "nu=0.0 must be positive"),
        (lambda: PositiveRandomFeatures(DIM, 4, nu=-1.0), "nu=-1.0 must be positive"),
        (lambda: RandomMaclaurin(DIM, 4, nu=0.0), "nu=0.0 must be positive"),
        (lambda: Quadratic(DIM, beta=0.0), "beta=0.0 must be positive"),
        (lambda: RandomFourier(DIM, 4, projection="sobol"), "projection='sobol' is not one of gaussian"),
        (lambda: RandomFourier(DIM, 4).check(torch.ones(2, DIM), "queries"), "queries must have unit length"),
        (lambda: RandomFourier(DIM, 4).check(torch.full((1, DIM), torch.nan), "queries"), "must have unit length"),
        (lambda: Quadratic(DIM).check(torch.ones(2, 3), "embeddings"), "embeddings have 3 dimensions"),
    ],
)
def test_refused(make: Callable[..., Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
