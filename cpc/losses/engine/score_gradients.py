"""From a tile of scores to losses, ranks, and d loss / d score, which gradients are made of: every form of loss.

In a softmax the target has probability p and log odds log((1 - p) / p) against it: log of the others' sum of exp s,
less the target's score. The loss is their softplus, and a score's slope is 1 - p times its share of the others' sum,
or -1 for the target. Written so, large scores cancel before anything is added, and tiny losses keep their digits.

No step here waits for a GPU: shapes are known beforehand, and nothing is asked of values there.

M rows, N candidates, T targets. A score of minus infinity belongs to a candidate or target that is not there.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor


class ScoreCorrections(NamedTuple):
    """How scores F become what a loss sees, G = F - log count, and which count; nothing in here gets a gradient.

    Attributes:
        log_count: `[N]` or `[M, N]`, of candidates; +inf: the row does not meet it.
        log_count_targets: `[M, T]`, of targets; +inf: the row has fewer.
        term_weight: of the candidates' terms in a logistic loss, of the shape of `log_count`; None: 1.
        hits: `[M, N]`, candidates that are targets of the row and were kept: the accuracy passes them over.
        tie_width: `[M, 1]`, how far apart scores may lie and yet tie (`tie_width`); None: it follows from the places of
            targets among the candidates.
    """

    log_count: Tensor | None = None
    log_count_targets: Tensor | None = None
    term_weight: Tensor | None = None
    hits: Tensor | None = None
    tie_width: Tensor | None = None

    def of(self, rows: Any) -> "ScoreCorrections":
        """Those of some rows, with `[1, N]` for what all rows share."""
        return ScoreCorrections(
            *(each if each is None else each[None] if each.ndim == 1 else each[rows] for each in self)
        )


class LossAndGradients(NamedTuple):
    """A tile's losses `[M, 1]` and their derivatives, but for a factor `[M, 1]` of each row, by the scores of
    candidates `[M, N]` and targets `[M, T]`.
    """

    loss: Tensor
    factor: Tensor
    score_gradients: Tensor
    targets_grad: Tensor


def losses_and_gradients(
    form: str,
    scores: Float[Tensor, "M N"],
    shifts: ScoreCorrections,
    own: Int[Tensor, "M T"] | None = None,
    targets: Float[Tensor, "M T"] | None = None,
    is_used: Bool[Tensor, "M N"] | None = None,
) -> tuple[Float[Tensor, " M"], LossAndGradients]:
    """Accuracy, losses and slopes of a tile; overwrites the scores. Slopes of `own` targets are among the candidates'.

    Args:
        form: a name in `TERMS`.
        scores: of the candidates.
        shifts: of these rows.
        own: places of a row's targets among the candidates, which it does not meet as such.
        targets: the targets' scores where they have no such places.
        is_used: candidates that a row meets besides its own; None: all.
    """
    log_count, log_count_targets, weight, hits, width = shifts
    assert width is not None
    if own is not None:
        targets = scores.gather(1, own)
    assert targets is not None
    if is_used is not None:
        scores.masked_fill_(~is_used, -torch.inf)
    if own is not None:
        scores.scatter_(1, own, -torch.inf)
    if log_count is not None:
        scores.masked_fill_(log_count == torch.inf, -torch.inf)
    if log_count_targets is not None:
        targets = targets.masked_fill(log_count_targets == torch.inf, -torch.inf)
    others = scores if hits is None else scores.masked_fill(hits, -torch.inf)
    accuracy, best = ranks(targets.amax(1, keepdim=True), others, width)
    if log_count is not None:
        scores -= log_count
        best = scores.amax(1, keepdim=True)
    if log_count_targets is not None:
        targets = targets - log_count_targets
    terms = TERMS[form](scores, targets, best, weight)
    if own is not None:
        terms.score_gradients.scatter_add_(1, own, terms.targets_grad)
    return accuracy, terms


def softmax_terms(scores: Tensor, targets: Tensor, best: Tensor, weight: Tensor | None) -> LossAndGradients:
    """-log of the softmax over targets and candidates, in the mean over the row's targets; overwrites the scores.

    With several targets the wanted distribution is uniform over them, as in TensorFlow's `sampled_softmax_loss`.
    """
    assert weight is None, "in a softmax the weight of a term is a shift of its score"
    is_alone = best == -torch.inf  # none of the row's candidates is left: the loss is its targets' alone
    scores[:, :1].masked_fill_(is_alone, 0)
    shares, log_total = softmax_in_place(scores)
    shares[:, :1].masked_fill_(is_alone, 0)
    if targets.shape[1] == 1:
        loss, factor = loss_and_factor(log_odds_against(targets, best, log_total))
        return LossAndGradients(loss, factor, shares, -torch.ones_like(targets))
    is_target = targets > -torch.inf
    wanted = is_target.to(scores) / is_target.sum(1, keepdim=True)
    best_target = targets.amax(1, keepdim=True)
    targets = targets - best_target  # large scores cancel before anything is added
    log_targets = targets.logsumexp(1, keepdim=True)
    mean_target = torch.where(is_target, targets * wanted, 0).sum(1, keepdim=True)
    loss, factor = loss_and_factor(log_odds_against(best_target, best, log_total - log_targets))
    among = torch.softmax(targets, 1)
    targets_grad = (among - wanted) - among * factor
    return LossAndGradients(
        loss + (log_targets - mean_target), torch.ones_like(factor), shares.mul_(factor), targets_grad
    )


def softmax_of_odds_terms(scores: Tensor, targets: Tensor, best: Tensor, weight: Tensor | None) -> LossAndGradients:
    """`softmax_terms` of scores F that are log odds, F = log(P / (1 - P)): of log P = log sigmoid(F)."""
    log_p, log_p_targets, best = F.logsigmoid(scores), F.logsigmoid(targets), F.logsigmoid(best)
    loss, factor, score_gradients, targets_grad = softmax_terms(log_p, log_p_targets, best, weight)
    # d log P / dF = 1 - P
    return LossAndGradients(
        loss, factor, score_gradients * torch.sigmoid(-scores), targets_grad * torch.sigmoid(-targets)
    )


def logistic_terms(scores: Tensor, targets: Tensor, best: Tensor, weight: Tensor | None) -> LossAndGradients:
    """Sum of log(1 + exp -G) over targets and of log(1 + exp G) over candidates; overwrites the scores.

    Every target is a positive of its own, as in the literature; TensorFlow's `nce_loss` spreads one positive over them.
    """
    candidates_grad = softplus(scores)
    if weight is not None:
        candidates_grad *= weight
    is_target = targets > -torch.inf
    loss = candidates_grad.sum(1, keepdim=True)
    loss = loss + torch.where(is_target, softplus(-targets), 0).sum(1, keepdim=True)
    score_gradients = scores.sigmoid_()
    if weight is not None:
        score_gradients *= weight
    targets_grad = torch.where(is_target, -torch.sigmoid(-targets), 0)
    return LossAndGradients(loss, torch.ones_like(loss), flush_denormals(score_gradients), targets_grad)


TERMS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor | None], LossAndGradients]] = {
    "softmax": softmax_terms,
    "softmax_of_odds": softmax_of_odds_terms,
    "logistic": logistic_terms,
}


def log_odds_against(
    positive_score: Float[Tensor, "*M"], best: Float[Tensor, "*M"], log_total: Float[Tensor, "*M"]
) -> Float[Tensor, "*M"]:
    """Log of the negatives' sum of exp s: `log_total` has it relative to the best, the result to the positive.

    nan where the positive's score overflowed, which is no loss of 0.
    """
    return ((best - positive_score) + log_total).masked_fill(positive_score == torch.inf, torch.nan)


def loss_and_factor(log_odds: Float[Tensor, "*M"]) -> tuple[Float[Tensor, "*M"], Float[Tensor, "*M"]]:
    """-log p and 1 - p, the factor of a row's slopes."""
    return softplus(log_odds), flush_denormals(log_odds.sigmoid(), OF_TWO)


def softplus(x: Float[Tensor, "*M"]) -> Float[Tensor, "*M"]:
    """log(1 + exp x) to the last digit: torch's takes x itself above 20, which in float64 is 2e-9 too little."""
    return F.softplus(x, threshold=40 if x.dtype == torch.float64 else 20)


def ranks(
    target_score: Float[Tensor, "M 1"], scores: Float[Tensor, "M N"], width: Float[Tensor, "M 1"]
) -> tuple[Float[Tensor, " M"], Float[Tensor, "M 1"]]:
    """`accuracy_of` each row, and the best of the other scores; `width` is the ties'."""
    best, lowest = scores.amax(1, keepdim=True), target_score - width
    if scores.device.type != "cpu":  # to ask which rows tie would make it wait: all count
        return accuracy_of(target_score, best, (scores >= lowest).sum(1, keepdim=True), width)[:, 0], best
    num_ties = torch.zeros_like(best)
    tied = ((best >= lowest) & (best <= target_score + width)).nonzero()[:, 0]
    if len(tied) > 0:
        num_ties[tied] = (scores[tied] >= lowest[tied]).sum(1, keepdim=True).to(num_ties)
    return accuracy_of(target_score, best, num_ties, width)[:, 0], best


def accuracy_of(
    target_score: Float[Tensor, "*M"], best: Float[Tensor, "*M"], num_ties: Tensor, width: Float[Tensor, "*M"]
) -> Float[Tensor, "*M"]:
    """[no other score is higher] / (1 + ties).

    Args:
        target_score: of each row's target.
        best: the highest of the other scores.
        num_ties: how many of the others are no lower than the target's score less the width.
        width: how far apart scores may lie and yet tie.
    """
    return torch.where(best <= target_score + width, 1 / (1 + num_ties.float()), 0.0)


@torch.no_grad()
def tie_width(
    queries: Float[Tensor, "M D"], lengths: Float[Tensor, "M T"], bias: Float[Tensor, "M T"] | None = None
) -> Float[Tensor, "M 1"]:
    """How far scores may lie from those of a row's targets and tie: as far as rounding can move equal ones apart.

    A product of width D errs by up to D eps / 2 times |q| |z|, in whatever order it is summed (Higham 2002, Accuracy
    and Stability of Numerical Algorithms, eq. 3.5), so two of equal vectors differ by up to D eps |q| |z|. Columns of
    one product are summed in different orders too. An encoder rounds equal latents differently: never below 16 eps.

    Args:
        queries: in the dtype in which products are summed.
        lengths: of the targets.
        bias: of the targets.
    """
    dtype = torch.finfo(queries.dtype)
    least = dtype.tiny**0.5  # the squares of lower values underflow
    largest = queries.norm(dim=1, keepdim=True).clamp(min=least) * lengths.amax(1, keepdim=True).clamp(min=least)
    if bias is not None:
        largest = largest + bias.abs().amax(1, keepdim=True)
    return max(16, queries.shape[1]) * dtype.eps * largest


def softmax_in_place(scores: Float[Tensor, "M N"]) -> tuple[Float[Tensor, "M N"], Float[Tensor, "M 1"]]:
    """Probabilities, in the scores' own memory, and the log of the sum of exponentials relative to the largest.

    The largest probability is one over that sum, and no less than 1/N: its log is safe.
    """
    probabilities = torch.softmax(scores, 1, out=scores if scores.device.type == "cpu" else None)
    log_total = -probabilities.amax(1, keepdim=True).log()
    return flush_denormals(probabilities, OF_TWO), log_total


OF_ONE, OF_TWO = 0.7, 0.35  # a slope comes alone, e^-61 in float32, or as a share times 1 - p, e^-30 each


def flush_denormals(score_gradients: Float[Tensor, "*M"], power: float = OF_ONE) -> Float[Tensor, "*M"]:
    """Slopes so small that products with them would be denormal become exact zeros, in place.

    Denormal operands slow a CPU's matrix products down up to a hundredfold, and a trained critic makes many; e^-30 of
    a row's sum is far below what sums in float32 resolve.
    """
    return F.threshold(score_gradients, torch.finfo(score_gradients.dtype).tiny ** power, 0.0, inplace=True)
