"""The loss with an anchor: a class without a positive, whose weight fixes the constant of each row.

`cpc.losses.definition.anchored_rows` has the equations. The loss of a class is the softplus of the log odds against it,
as in `score_gradients.py`. Let S be the sum of exp s over the negatives that both classes have. The log odds are

    against the positive: log(S + nu) - s+,        against the anchor: log(S + exp s_j) - log nu

for the negative j that the positive's class leaves out. So the derivatives by the scores of all other negatives are
their shares of S times one factor of the row.

M rows, N candidates.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cpc.losses.engine.score_gradients import (
    TWO_FACTORS,
    LossAndGradients,
    flush_denormals,
    log_odds_against,
    loss_and_factor,
    softmax_in_place,
    softplus,
)

DEFAULT_ANCHOR_WEIGHT = 0.3  # measured: docs/results/estimators.md


def check_anchor(prefix: str, anchor: bool, anchor_weight: float) -> None:
    """Raise an error if the weight is not a positive, finite number, or is given without an anchor.

    Raises:
        ValueError: if it is; the message names the option, with the prefix.
    """
    is_number = isinstance(anchor_weight, int | float) and not isinstance(anchor_weight, bool)
    if not (is_number and 0 < anchor_weight < math.inf):
        raise ValueError(
            f"`{prefix}anchor_weight`={anchor_weight!r} must be a positive, finite number: the weight of the class "
            "without a positive, for each negative of a row"
        )
    if not anchor and anchor_weight != DEFAULT_ANCHOR_WEIGHT:
        raise ValueError(
            f"`{prefix}anchor_weight`={anchor_weight} has no effect without the anchor: set `{prefix}anchor`=true, or "
            "leave it out"
        )


class Anchor(NamedTuple):
    """The weight of the anchor.

    Attributes:
        weight: nu / n.
        log_nu: `[M, 1]`, log of the weight of the anchor of each row.
    """

    weight: float
    log_nu: Tensor


class AnchoredLoss(NamedTuple):
    """The objective of rows with the anchor and its derivatives, each `[M, 1]`.

    Attributes:
        objective: the objective.
        loss: the loss without the anchor, -log p of the positive among all candidates.
        factor: derivative by log S. A negative in S has the derivative factor exp(s) / S.
        target_grad: derivative by the score of the positive.
        left_out_grad: derivative by the score of the negative that the positive's class leaves out.
    """

    objective: Tensor
    loss: Tensor
    factor: Tensor
    target_grad: Tensor
    left_out_grad: Tensor


def anchored_loss(
    target: Float[Tensor, "M 1"],
    left_out: Float[Tensor, "M 1"],
    best: Float[Tensor, "M 1"],
    log_total: Float[Tensor, "M 1"],
    anchor: Anchor,
) -> AnchoredLoss:
    """Return the objective of rows, given their sums over negatives.

    Args:
        target: score of the positive.
        left_out: score of the negative that the positive's class leaves out.
        best: highest score of the other negatives; minus infinity if there are none.
        log_total: log of the sum of exp(s - best) over the other negatives.
        anchor: the weight of the anchor.
    """
    log_odds = log_odds_against(target, best, log_total)  # log S - s+
    above_nu, above_left_out = (best - anchor.log_nu) + log_total, (best - left_out) + log_total
    target_loss, target_factor = loss_and_factor(torch.logaddexp(log_odds, anchor.log_nu - target))
    anchor_loss, anchor_factor = loss_and_factor(torch.logaddexp(above_nu, left_out - anchor.log_nu))
    share = 1 / (1 + anchor.weight)
    target_factor, anchor_factor = share * target_factor, (1 - share) * anchor_factor
    return AnchoredLoss(
        objective=share * target_loss + (1 - share) * anchor_loss,
        loss=softplus(torch.logaddexp(log_odds, left_out - target)),
        factor=flush_denormals(
            target_factor * above_nu.sigmoid() + anchor_factor * above_left_out.sigmoid(), TWO_FACTORS
        ),
        target_grad=-target_factor,
        left_out_grad=flush_denormals(anchor_factor * (-above_left_out).sigmoid()),
    )


def anchored_softmax(
    scores: Float[Tensor, "M N"],
    targets: Float[Tensor, "M 1"],
    best: Float[Tensor, "M 1"],
    weight: Tensor | None,
    *,
    left_out: Int[Tensor, "M 1"],
    anchor: Anchor,
) -> LossAndGradients:
    """Return the objective of a tile, as a form of `score_gradients.py`; the scores are overwritten.

    `left_out` has the index of the negative that the positive's class of each row leaves out.
    """
    left_out_scores = scores.gather(1, left_out)
    scores.scatter_(1, left_out, -torch.inf)
    best = scores.amax(1, keepdim=True)
    shares, log_total = softmax_in_place(scores, best)
    found = anchored_loss(targets, left_out_scores, best, log_total, anchor)
    score_grads = shares.mul_(found.factor).scatter_(1, left_out, found.left_out_grad)
    return LossAndGradients(found.loss, torch.ones_like(found.factor), score_grads, found.target_grad, found.objective)
