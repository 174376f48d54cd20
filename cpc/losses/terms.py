"""From a tile of candidates' scores and the targets' to losses and slopes, for every form of loss.

M rows, N candidates, T targets. A score of minus infinity belongs to a candidate or target that is not there.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from cpc.losses.slopes import log_odds_against, loss_and_factor, softmax_in_place, without_denormals


class Terms(NamedTuple):
    """A tile's losses and their derivatives.

    Attributes:
        loss: `[M]`.
        slopes: `[M, N]`: d loss / d candidate's score, up to a factor of each row.
        factor: `[M]`: that factor.
        target_slopes: `[M, T]`: d loss / d target's score.
    """

    loss: Tensor
    slopes: Tensor
    factor: Tensor
    target_slopes: Tensor


def softmax_terms(
    scores: Float[Tensor, "M N"], target_scores: Float[Tensor, "M T"], term_weight: Float[Tensor, "_ N"] | None
) -> Terms:
    """-log of the softmax over targets and candidates, in the mean over the row's targets; overwrites the scores.

    With several targets the wanted distribution is uniform over them, as in TensorFlow's `sampled_softmax_loss`.
    """
    assert term_weight is None, "in a softmax the weight of a term is a shift of its score"
    best, best_target = scores.amax(1), target_scores.amax(1)
    probabilities, log_total = softmax_in_place(scores)
    log_total = rearrange(log_total, "m 1 -> m")
    is_alone = best == -torch.inf
    if bool(is_alone.any()):  # rows all of whose candidates are gone: their loss is the targets' alone
        probabilities[is_alone], log_total[is_alone] = 0, 0
    is_target = target_scores > -torch.inf
    wanted = is_target.to(scores) / is_target.sum(1, keepdim=True)
    target_scores = target_scores - rearrange(best_target, "m -> m 1")  # large scores cancel before anything is added
    log_targets = target_scores.logsumexp(1)  # of one target: 0
    mean_target = torch.where(is_target, target_scores * wanted, 0).sum(1)
    of_targets, factor = loss_and_factor(log_odds_against(best_target, best, log_total - log_targets))
    among_targets = torch.softmax(target_scores, 1)
    target_slopes = (among_targets - wanted) - among_targets * rearrange(factor, "m -> m 1")
    return Terms(of_targets + (log_targets - mean_target), probabilities, factor, target_slopes)


def softmax_of_odds_terms(
    scores: Float[Tensor, "M N"], target_scores: Float[Tensor, "M T"], term_weight: Float[Tensor, "_ N"] | None
) -> Terms:
    """`softmax_terms` of scores F that are log odds, F = log(P / (1 - P)): of log P = log sigmoid(F)."""
    terms = softmax_terms(F.logsigmoid(scores), F.logsigmoid(target_scores), term_weight)
    slopes = terms.slopes * torch.sigmoid(-scores)  # d log P / dF = 1 - P
    return Terms(terms.loss, slopes, terms.factor, terms.target_slopes * torch.sigmoid(-target_scores))


def logistic_terms(
    scores: Float[Tensor, "M N"], target_scores: Float[Tensor, "M T"], term_weight: Float[Tensor, "_ N"] | None
) -> Terms:
    """Sum of log(1 + exp -G) over targets and of log(1 + exp G) over candidates; overwrites the scores.

    Every target is a positive of its own, as in the literature; TensorFlow's `nce_loss` spreads one positive over them.
    """
    candidates = F.softplus(scores)
    if term_weight is not None:
        candidates *= term_weight
    is_target = target_scores > -torch.inf
    loss = candidates.sum(1) + torch.where(is_target, F.softplus(-target_scores), 0).sum(1)
    slopes = scores.sigmoid_()
    if term_weight is not None:
        slopes *= term_weight
    target_slopes = torch.where(is_target, -torch.sigmoid(-target_scores), 0)
    return Terms(loss, without_denormals(slopes), torch.ones_like(loss), target_slopes)


TERMS: dict[str, Callable[[Tensor, Tensor, Tensor | None], Terms]] = {
    "softmax": softmax_terms,
    "softmax_of_odds": softmax_of_odds_terms,
    "logistic": logistic_terms,
}
