"""Random Fourier features against the Gaussian kernel, in the mean over their draws."""

import math

import pytest
import torch
import torch.nn.functional as F
from refusals import refuses
from torch import Tensor

from cpc.candidates.kernels import RandomFourier, random_projection

DIM = 8


def pair(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x, y = F.normalize(torch.randn(2, DIM, generator=generator), dim=1)
    return x, y


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


def test_orthogonal_rows_are_unbiased(generator: torch.Generator) -> None:
    x, y = pair(generator)
    kernel = RandomFourier(DIM, 4000, 2.0, "orthogonal")
    terms = (kernel(x) * kernel(y) * kernel.num_features).reshape(2, -1).mean(0)  # cosine and sine of a frequency
    expected = math.exp(-float(((x - y) ** 2).sum()))
    assert float(terms.mean()) == pytest.approx(expected, abs=4 * float(terms.std()) / math.sqrt(len(terms)))


def test_orthogonal_rows_vary_less_than_independent_ones(generator: torch.Generator) -> None:
    x, y = pair(generator)

    def variance(projection: str) -> float:
        kernel = RandomFourier(DIM, DIM * 500, 1.0, projection)
        return float((kernel(x) * kernel(y)).reshape(2, 500, DIM).sum((0, 2)).var())

    assert variance("orthogonal") < variance("gaussian")


def test_blocks_of_rows_are_orthogonal() -> None:
    rows = random_projection("orthogonal", 12, DIM, seed=0)
    gram = rows[:DIM] @ rows[:DIM].T
    assert (gram - torch.diag(gram.diagonal())).abs().max() < 1e-4
    assert (rows[:DIM] @ rows[DIM:].T).abs().max() > 0.1


def test_lengths_and_shapes_are_checked() -> None:
    kernel = RandomFourier(DIM, 4)
    refuses("queries must have unit length", kernel.check, torch.ones(2, DIM), "queries")
    refuses(r"embeddings is .* of the shape \[2, 3\]", kernel.check, torch.ones(2, 3), "embeddings")
