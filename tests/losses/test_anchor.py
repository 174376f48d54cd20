"""InfoNCE-anchor: the objective against its equations in exact arithmetic, and what it learns.

What every path of the engine computes is compared to the definition in `test_definition.py` and `gloo_ranks.py`.
"""

import itertools
import math
from decimal import Decimal, localcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from cpc.candidates import STRATEGIES
from cpc.candidates.draws import NegativePool
from cpc.contexts import Identity
from cpc.encoders import FrameEncoder
from cpc.losses import Contrastive, LocalContrastive, contrast, info_nce
from cpc.model import CPC
from cpc.predictors import Bilinear

WEIGHTS = [0.01, 1.0, 30.0]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def objective(positive: float, negatives: list[float], left_out: int, weight: float, digits: int = 40) -> float:
    """(n L_p + nu L_a) / (n + nu) of a row, in decimal numbers."""
    with localcontext() as context:
        context.prec = digits
        nu, n = Decimal(weight) * len(negatives), len(negatives)
        exponentials = [Decimal(score).exp() for score in negatives]
        kept = sum(each for i, each in enumerate(exponentials) if i != left_out)
        of_positive = (Decimal(positive).exp() + kept + nu).ln() - Decimal(positive)
        of_anchor = (sum(exponentials) + nu).ln() - nu.ln()
        return float((n * of_positive + nu * of_anchor) / (n + nu))


def spread(row: int, num: int) -> int:
    """The position of the negative that a row leaves out, of `num`: a step by the golden ratio for each row."""
    return int(row * (math.sqrt(5) - 1) / 2 % 1 * num)


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("compute", ["float32", "reference"])
def test_equals_a_loop_over_rows(compute: str, weight: float) -> None:
    """Against all candidates, in which two rows share a positive, and against given negatives, some given twice."""
    queries, candidates, positives = random(5, 3), random(6, 3, seed=1), torch.tensor([2, 0, 5, 2, 3])
    scores = (queries @ candidates.T).tolist()
    options: dict[str, Any] = {"anchor": True, "anchor_weight": weight, "compute": compute}
    expected = []
    for row, positive in enumerate(positives.tolist()):
        others = [score for column, score in enumerate(scores[row]) if column != positive]
        expected.append(objective(scores[row][positive], others, spread(row, len(others)), weight))
    found = info_nce(queries, candidates, positives, **options)
    assert found.loss.item() == pytest.approx(sum(expected) / 5, rel=1e-12)
    negatives = torch.tensor([[3, 1, 1], [1, 1, 5], [0, 1, 2], [0, 3, 4], [4, 2, 4]])
    expected = [
        objective(scores[row][positive], [scores[row][column] for column in negatives[row].tolist()], 0, weight)
        for row, positive in enumerate(positives.tolist())
    ]
    found = info_nce(queries, candidates, positives, negatives=negatives, **options)
    assert found.loss.item() == pytest.approx(sum(expected) / 5, rel=1e-12)


@pytest.mark.parametrize("weight", [0.01, 1.0])
@pytest.mark.parametrize("scores", list(itertools.product([-1e3, 30.0, 1e3], repeat=3)))
def test_large_scores_lose_no_digits(scores: tuple[float, ...], weight: float) -> None:
    """One positive and three negatives; the last negative has the score of the second, less one."""
    positive, left_out, kept = scores
    vectors = torch.tensor([[positive], [left_out], [kept], [kept - 1]], dtype=torch.float64, requires_grad=True)
    ones, zero, negatives = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1).long(), torch.tensor([[1, 2, 3]])
    found = info_nce(ones, vectors, zero, negatives=negatives, anchor=True, anchor_weight=weight).loss
    expected = objective(positive, [left_out, kept, kept - 1], 0, weight, digits=950)  # exp(2000) has 869
    assert found.item() == pytest.approx(expected, rel=1e-13, abs=1e-300)
    options: dict[str, Any] = {"anchor": True, "anchor_weight": weight, "compute": "reference"}
    reference = info_nce(ones, vectors, zero, negatives=negatives, **options).loss
    gradients = [torch.autograd.grad(loss, vectors)[0] for loss in (found, reference)]
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("compute", ["float32", "reference"])
def test_one_negative_of_weight_one_is_the_logistic_loss(compute: str) -> None:
    queries, candidates = random(4, 3), random(2, 3, seed=1)
    positives = torch.tensor([0, 1, 1, 0])
    scores = queries @ candidates.T
    rows = torch.arange(4)
    pairs = (1 + (-scores[rows, positives]).exp()).log() + (1 + scores[rows, 1 - positives].exp()).log()
    found = info_nce(queries, candidates, positives, anchor=True, anchor_weight=1.0, compute=compute).loss
    assert found.item() == pytest.approx(pairs.mean().item() / 2, rel=1e-12)


@pytest.mark.parametrize("num_negatives", [None, 1, 5])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_is_recorded_is_that_of_info_nce(strategy: str, num_negatives: int | None) -> None:
    options: dict[str, Any] = {"strategy": strategy, "num_negatives": num_negatives, "group_id": torch.zeros(4).long()}
    inputs = random(2, 4, 6, 3), random(4, 6, 3, seed=1)
    with_anchor, without = (
        contrast(*inputs, generator=torch.Generator().manual_seed(2), anchor=anchor, **options)
        for anchor in (True, False)
    )
    torch.testing.assert_close(with_anchor[1:], without[1:], rtol=1e-12, atol=1e-12)
    assert abs(with_anchor.loss - without.loss) > 0.05


PAIRS = [(0, 0), (0, 0), (0, 1), (0, 2), (1, 1), (1, 1), (1, 2), (1, 0)]


def expected_gradient(table: Tensor, num_negatives: int, **options: Any) -> Tensor:
    """The gradient of the expected loss by the scores [x, y]: all rows of equally likely pairs and negatives."""
    rows = torch.tensor(list(itertools.product(PAIRS, repeat=1 + num_negatives)))  # [row, pair, x or y]
    x, chosen = rows[:, 0, 0], rows[:, :, 1]
    columns = chosen + 3 * torch.arange(1 + num_negatives)  # a negative may equal the positive: each has its own copy
    leaf = table.clone().requires_grad_()
    queries = torch.eye(2, dtype=torch.float64)[x]
    loss = info_nce(queries, leaf.T.repeat(1 + num_negatives, 1), columns[:, 0], negatives=columns[:, 1:], **options)
    return torch.autograd.grad(loss.loss, leaf)[0]


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("num_negatives", [1, 2, 3])
def test_the_optimum_is_the_density_ratio_with_its_constant(num_negatives: int, weight: float) -> None:
    joint = torch.zeros(2, 3, dtype=torch.float64)
    for pair in PAIRS:
        joint[pair] += 1 / len(PAIRS)
    log_ratio = (joint / joint.sum(0) / joint.sum(1, keepdim=True)).log()
    shifted = log_ratio + torch.tensor([[0.4], [-0.2]])  # a constant of each context
    options: dict[str, Any] = {"anchor": True, "anchor_weight": weight}
    assert expected_gradient(log_ratio, num_negatives, **options).abs().max() < 1e-13
    for scores in (shifted, log_ratio + 0.3, log_ratio * 1.3):
        assert expected_gradient(scores, num_negatives, **options).abs().max() > 1e-4
    assert expected_gradient(shifted, num_negatives).abs().max() < 1e-13  # InfoNCE leaves the constant free


@pytest.mark.parametrize("num_before", [0, 10**6])
def test_the_negatives_that_are_left_out_are_spread_evenly(num_before: int) -> None:
    """Each of nine negatives, of a pool with the positive in its middle, once in nine rows; never the positive."""
    mask = torch.tensor([[False, *9 * [True], False, True]])
    num_rows = 900
    positives = torch.full((num_rows,), 4)
    pool = NegativePool.of(mask, torch.zeros(num_rows).long(), positives)
    counts = torch.bincount(pool.spread(num_before), minlength=12)
    assert counts[[0, 4, 10]].tolist() == [0, 0, 0]
    assert (counts[[1, 2, 3, 5, 6, 7, 8, 9, 11]] - num_rows / 9).abs().max() <= 3


@pytest.mark.parametrize("weight", [0, -1.0, math.nan, math.inf, "balanced", True, None])
def test_weights_that_cannot_be(unchecked_types: None, weight: Any) -> None:
    with pytest.raises(ValueError, match=r"`loss.anchor_weight`=.* must be a positive, finite number"):
        Contrastive(anchor=True, anchor_weight=weight)


def test_combinations_that_cannot_be() -> None:
    with pytest.raises(ValueError, match=r"anchor_weight`=2\.0 has no effect .*: set `loss.anchor`=true"):
        Contrastive(anchor_weight=2.0)
    with pytest.raises(ValueError, match=r"anchor_weight`=2\.0 has no effect without the anchor: set `anchor`=true"):
        info_nce(random(2, 3), random(2, 3), torch.arange(2), anchor_weight=2.0)
    encoder = FrameEncoder((16, 16), 6, widths=(4, 3), kernels=(4, 3), strides=(2, 2))
    with pytest.raises(ValueError, match="LocalContrastive has a loss for every place"):
        CPC(encoder, Identity(), Bilinear(1), LocalContrastive(anchor=True))
