"""The kernels that RF-softmax is compared with, against closed forms; the tree's tests are those of all samplers."""

import math

import pytest
import torch
import torch.nn.functional as F
from refusals import refuses

from benchmarks.extreme.kernels import (
    PositiveRandomFeatures,
    Quadratic,
    RandomMaclaurin,
    StructuredFourier,
    structured_block,
)

DIM = 8


def test_quadratic_equals_its_kernel(generator: torch.Generator) -> None:
    kernel = Quadratic(DIM, alpha=3.0, beta=0.5)
    x, y = torch.randn(2, 5, DIM, generator=generator)
    for row, (a, b) in enumerate(zip(x.tolist(), y.tolist(), strict=True)):
        expected = 3 * sum(p * q for p, q in zip(a, b, strict=True)) ** 2 + 0.5
        assert float(kernel(x[row]) @ kernel(y[row])) == pytest.approx(expected, rel=1e-5)
    assert kernel.num_features == 37


@pytest.mark.parametrize(
    "kernel",
    [
        PositiveRandomFeatures(DIM, 40_000, 1.5, "gaussian"),
        PositiveRandomFeatures(DIM, 4000, 1.5, "orthogonal"),
        RandomMaclaurin(DIM, 100_000, 1.5),
    ],
)
def test_unbiased(kernel: PositiveRandomFeatures | RandomMaclaurin, generator: torch.Generator) -> None:
    x, y = F.normalize(torch.randn(2, DIM, generator=generator), dim=1)
    terms = kernel(x) * kernel(y) * kernel.num_features
    expected = math.exp(kernel.nu * float(x @ y))
    assert float(terms.mean()) == pytest.approx(expected, abs=4 * float(terms.std()) / math.sqrt(len(terms)))


def test_structured_rows_come_near_the_kernel(generator: torch.Generator) -> None:
    """SORF is a little biased: its lengths are fixed."""
    x, y = F.normalize(torch.randn(2, 64, generator=generator), dim=1)
    kernel = StructuredFourier(64, 6400, 2.0)
    assert float(kernel(x) @ kernel(y)) == pytest.approx(math.exp(-float(((x - y) ** 2).sum())), abs=0.02)


def test_structured_blocks_are_orthogonal(generator: torch.Generator) -> None:
    rows = structured_block(DIM, generator)
    gram = rows @ rows.T
    assert (gram - torch.diag(gram.diagonal())).abs().max() < 1e-4
    cut = torch.cat([structured_block(6, generator) for _ in range(100)])  # of rows of 8
    assert float((cut**2).sum(1).mean()) == pytest.approx(6, rel=0.1)


def test_positive_features_of_queries_differ_by_a_factor_alone(generator: torch.Generator) -> None:
    kernel = PositiveRandomFeatures(DIM, 16)
    x = torch.randn(4, DIM, generator=generator)
    ratio = kernel.query_features(x) / kernel(x)
    torch.testing.assert_close(ratio, ratio[:, :1].expand_as(ratio), rtol=1e-4, atol=0)
    long = 30 * x
    assert (kernel(long) == 0).all()
    assert (kernel.query_features(long).amax(1) == 1).all()


def test_refused() -> None:
    refuses("nu=-1.0 must be positive", PositiveRandomFeatures, DIM, 4, nu=-1.0)
    refuses("beta=0.0 must be positive", Quadratic, DIM, beta=0.0)
