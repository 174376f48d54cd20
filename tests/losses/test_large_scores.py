"""Large scores cancel before anything is added, and tiny losses keep their digits: float32 against loops in float64."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from cpc.bounds.estimators import jensen_shannon
from cpc.candidates import LatentBank
from cpc.candidates.samplers import Draw
from cpc.losses import bank_loss, class_loss, info_nce

N = 1000
PLACES = torch.arange(3)


def by_info_nce(queries: Tensor, vectors: Tensor) -> Tensor:
    return info_nce(queries, vectors, PLACES).loss_nats


def by_draws(queries: Tensor, vectors: Tensor) -> Tensor:
    negatives = torch.arange(N - 1).expand(3, -1)
    return info_nce(queries, vectors, PLACES, negatives=negatives + (negatives >= PLACES[:, None])).loss_nats


def by_bank(queries: Tensor, vectors: Tensor) -> Tensor:
    return bank_loss(queries, vectors[PLACES], LatentBank(vectors, torch.arange(N)), sequence_id=PLACES).loss_nats


def by_draws_from_the_bank(queries: Tensor, vectors: Tensor) -> Tensor:
    draw = Draw(torch.arange(N), torch.zeros(N), torch.zeros(3))
    return bank_loss(queries, vectors[PLACES], LatentBank(vectors, torch.arange(N)), draw, sequence_id=PLACES).loss_nats


def by_full_softmax(queries: Tensor, vectors: Tensor) -> Tensor:
    return class_loss(queries, vectors, PLACES, objective="full_softmax").loss_nats


LOSSES = [by_info_nce, by_draws, by_bank, by_draws_from_the_bank, by_full_softmax]


@pytest.mark.parametrize(("entry", "dim"), [(100.0, 1), (12.0, 512)])
@pytest.mark.parametrize("loss", LOSSES)
def test_equal_scores_read_nothing_however_large(loss: Callable[..., Tensor], entry: float, dim: int) -> None:
    """Scores of 1e4 and of 73 728, exact in float32: log N, and no nat of information."""
    found = loss(torch.full((3, dim), entry), torch.full((N, dim), entry))
    assert found.tolist() == pytest.approx([math.log(N)] * 3, rel=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("level", [0.0, 3e4])
def test_tiny_losses_keep_their_digits(loss: Callable[..., Tensor], level: float) -> None:
    """Positives 17, 20 and 25 nats above the best of a thousand; float32 knows next to 1 no step below 6e-8."""
    steps = torch.linspace(0, 8, N).round(decimals=1)[:, None]
    vectors = torch.cat([torch.full((N, 1), level), -steps, torch.eye(N)[:, :3]], 1)  # scores are exact
    queries = torch.cat([torch.ones(3, 2), torch.diag(torch.tensor([17.0, 20.0, 25.0]))], 1)
    found = loss(queries, vectors)
    for row, nats in enumerate(found.tolist()):
        scores = [float(queries[row].double() @ vector) for vector in vectors.double()]
        others = math.fsum(math.exp(s - scores[row]) for place, s in enumerate(scores) if place != row)
        assert nats == pytest.approx(math.log1p(others), rel=1e-3 if level else 1e-5)  # scores of 3e4 come in steps


def test_the_gradient_of_a_tiny_loss_is_the_negatives_and_the_positives() -> None:
    """Both shares of 1 - p = 1.0e-9 pull, where p - 1 would be 0 in float32."""
    vectors = torch.tensor([[20.0], [0.0], [-1.0]], requires_grad=True)
    torch.autograd.backward(info_nce(torch.ones(1, 1), vectors, torch.tensor([0])).loss)
    shares = [math.exp(-20), math.exp(-21)]
    total = 1 + sum(shares)
    expected = [-sum(shares) / total, shares[0] / total, shares[1] / total]
    assert vectors.grad.flatten().tolist() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("behind", [15.0, 24.5, 29.0, 40.0])
def test_large_losses_keep_their_digits(loss: Callable[..., Tensor], behind: float) -> None:
    """A positive far behind the best of its negatives adds e^-behind to the loss, which float64 resolves."""
    vectors = torch.full((N, 1), -500.0, dtype=torch.float64)
    vectors[:3], vectors[-1] = -behind, 0.0
    found = loss(torch.ones(3, 1, dtype=torch.float64), vectors)
    expected = behind + math.log1p(3 * math.exp(-behind))
    assert found.tolist() == pytest.approx([expected] * 3, rel=1e-14)


@pytest.mark.parametrize("score", [-31.0, -22.0, 22.0, 31.0])
def test_large_logistic_losses_keep_their_digits(score: float) -> None:
    classes = torch.tensor([[score], [score / 2]], dtype=torch.float64)
    found = class_loss(torch.ones_like(classes[:1]), classes, torch.tensor([0]), objective="full_logistic")
    expected = math.log1p(math.exp(-score)) + math.log1p(math.exp(score / 2))
    assert found.loss.item() == pytest.approx(expected, rel=1e-14)
    of_pairs = torch.tensor([[score, score / 2], [score / 2, score]], dtype=torch.float64)
    assert jensen_shannon(of_pairs).item() == pytest.approx(-expected, rel=1e-14)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_positive_that_overflowed_is_no_loss_of_zero(loss: Callable[..., Tensor]) -> None:
    vectors = torch.ones(N, 1)
    vectors[0] = torch.inf
    assert not bool(loss(torch.ones(3, 1), vectors).isfinite().any())
