"""Losses, accuracies and derivatives by the scores of a tile, for every form of loss.

Let p be the softmax probability of the target. The log odds against the target, log((1 - p) / p), are the log-sum-exp
of the other scores minus the target's score. The loss is the softplus of these log odds. Its derivative by the score of
another candidate is (1 - p) times the share of this candidate in the sum; its derivative by the target's score is -(1 -
p). In this form large scores cancel before anything is added, and tiny losses keep their digits. Values are read only
on a CPU: no function here makes the host wait for a GPU.

M rows, N candidates, T targets. A score of minus infinity marks a candidate or target that does not exist.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor


class ScoreCorrections(NamedTuple):
    """Corrections that turn the scores F into the scores G = F - log count of the loss. They have no gradient."""

    # `[N]` or `[M, N]`, log expected count of each candidate; +inf excludes a candidate from the row.
    log_count: Tensor | None = None
    log_count_targets: Tensor | None = None  # `[M, T]`, log expected count of each target; +inf marks padding
    # Weights of the candidates' terms in a logistic loss, in the shape of `log_count`; None: all are 1.
    term_weight: Tensor | None = None
    hits: Tensor | None = None  # `[M, N]`, candidates that are targets of the row and were kept. Accuracy ignores them
    # `[M, 1]`, see `tie_width`. None: computed from the targets, which must be among the candidates.
    tie_width: Tensor | None = None

    def select(self, rows: Any) -> "ScoreCorrections":
        """Return the corrections of some rows, as `[1, N]` if all rows share them."""
        return ScoreCorrections(
            *(field if field is None else field[None] if field.ndim == 1 else field[rows] for field in self)
        )


class LossAndGradients(NamedTuple):
    """The losses of a tile and their derivatives by the scores of candidates and targets, up to a factor per row."""

    loss: Float[Tensor, "M 1"]
    factor: Float[Tensor, "M 1"]
    score_grads: Float[Tensor, "M N"]
    target_grads: Float[Tensor, "M T"]


def loss_and_gradients(
    form: str,
    scores: Float[Tensor, "M N"],
    corrections: ScoreCorrections,
    targets: Float[Tensor, "M T"] | None = None,
    own: Int[Tensor, "M T"] | None = None,
    num_times: Bool[Tensor, "B N"] | Integer[Tensor, "B N"] | None = None,
    sequence: Int[Tensor, " M"] | None = None,
    bias: Float[Tensor, " N"] | None = None,
) -> tuple[Float[Tensor, " M"], LossAndGradients]:
    """Return accuracies, losses and score gradients of a tile. The scores are overwritten.

    Args:
        form: a name in `FORMS`.
        scores: scores of the candidates.
        corrections: corrections of these rows.
        targets: scores of the targets if they are not among the candidates.
        own: indices of the row's targets among the candidates. Targets do not count as candidates. The gradients of the
            targets are in `score_grads`.
        num_times: how often each candidate counts for the rows of a sequence: a mask, or, in a softmax, the number of
            its draws. None: all count once.
        sequence: the row of `num_times` of each row; None: row m has row m.
        bias: added to the scores.
    """
    log_count, log_count_targets, weight, hits, width = corrections
    if bias is not None:
        scores += bias
    if own is not None:
        targets = scores.gather(1, own)
    assert targets is not None
    assert width is not None
    if num_times is not None:
        num_times = num_times if sequence is None else num_times[sequence]
        scores.masked_fill_(~num_times if num_times.dtype == torch.bool else num_times == 0, -torch.inf)
    if own is not None:
        scores.scatter_(1, own, -torch.inf)
    if log_count is not None:
        scores.masked_fill_(log_count == torch.inf, -torch.inf)
    if log_count_targets is not None:
        targets = targets.masked_fill(log_count_targets == torch.inf, -torch.inf)
    counts = None if num_times is None or num_times.dtype == torch.bool else num_times
    others = scores if hits is None else scores.masked_fill(hits, -torch.inf)
    best, target = others.amax(1, keepdim=True), targets.amax(1, keepdim=True)
    num_ties = torch.zeros_like(best)
    # On a GPU, finding the rows with ties would make the host wait.
    is_tied = (best >= target - width) & (best <= target + width)
    tied: Any = is_tied.nonzero()[:, 0] if scores.device.type == "cpu" else slice(None)
    is_tie = others[tied] >= (target - width)[tied]
    ties = is_tie if counts is None else is_tie * counts[tied]
    num_ties[tied] = ties.sum(1, keepdim=True).to(num_ties)
    accuracy = accuracy_of(target, best, num_ties, width)[:, 0]
    if log_count is not None:
        scores -= log_count
    if counts is not None:
        assert form == "softmax"
        scores += counts.clamp(min=1).to(scores).log()
    if log_count is not None or hits is not None or counts is not None:
        best = scores.amax(1, keepdim=True)
    if log_count_targets is not None:
        targets = targets - log_count_targets
    found = FORMS[form](scores, targets, best, weight)
    if own is not None:
        found.score_grads.scatter_add_(1, own, found.target_grads)
    return accuracy, found


def softmax(scores: Tensor, targets: Tensor, best: Tensor, weight: Tensor | None) -> LossAndGradients:
    """Return -log softmax over targets and candidates, averaged over the row's targets; the scores are overwritten.

    The target distribution is uniform over several targets, as in TensorFlow's `sampled_softmax_loss`.
    """
    assert weight is None, "in a softmax, a weight is a correction of the score"
    is_empty = best == -torch.inf  # without another candidate, shares and the log of their total are 0
    scores[:, :1].masked_fill_(is_empty, 0)
    shares = torch.softmax(scores, 1, out=scores if scores.device.type == "cpu" else None)
    log_total = -shares.amax(1, keepdim=True).log()  # of exp(score - best): the largest share is 1 / total
    shares[:, :1].masked_fill_(is_empty, 0)
    flush_denormals(shares, TWO_FACTORS)
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
    target_shares = torch.softmax(targets, 1)
    target_grads = (target_shares - wanted) - target_shares * factor
    loss = loss + (log_targets - mean_target)
    return LossAndGradients(loss, torch.ones_like(factor), shares.mul_(factor), target_grads)


def softmax_of_odds(scores: Tensor, targets: Tensor, best: Tensor, weight: Tensor | None) -> LossAndGradients:
    """Return the softmax loss of log P = log sigmoid(F), for scores F that are log odds log(P / (1 - P))."""
    log_p, log_p_targets, best = F.logsigmoid(scores), F.logsigmoid(targets), F.logsigmoid(best)
    loss, factor, score_grads, target_grads = softmax(log_p, log_p_targets, best, weight)
    # d log P / dF = 1 - P
    return LossAndGradients(loss, factor, score_grads * torch.sigmoid(-scores), target_grads * torch.sigmoid(-targets))


def logistic(scores: Tensor, targets: Tensor, best: Tensor, weight: Tensor | None) -> LossAndGradients:
    """Return the sum of log(1 + exp -G) over targets and log(1 + exp G) over candidates; the scores are overwritten.

    Every target counts as a whole positive, as in the literature; TensorFlow's `nce_loss` divides one positive among
    the targets.
    """
    candidate_terms, score_grads = softplus(scores), scores.sigmoid_()
    if weight is not None:
        candidate_terms *= weight
        score_grads *= weight
    is_target = targets != -torch.inf
    loss = candidate_terms.sum(1, keepdim=True)
    loss = loss + torch.where(is_target, softplus(-targets), 0).sum(1, keepdim=True)
    target_grads = torch.where(is_target, -torch.sigmoid(-targets), 0)
    return LossAndGradients(loss, torch.ones_like(loss), flush_denormals(score_grads), target_grads)


Form = Callable[[Tensor, Tensor, Tensor, Tensor | None], LossAndGradients]
FORMS: dict[str, Form] = {"softmax": softmax, "softmax_of_odds": softmax_of_odds, "logistic": logistic}


def log_odds_against(
    positive_score: Float[Tensor, "*M"], best: Float[Tensor, "*M"], log_total: Float[Tensor, "*M"]
) -> Float[Tensor, "*M"]:
    """Return log(sum of exp s over the negatives) minus the positive's score; nan if the positive's score overflowed.

    `log_total` is the log of the sum of exp(s - best) over the negatives; `best` is the highest score of a negative.
    """
    return ((best - positive_score) + log_total).masked_fill(positive_score == torch.inf, torch.nan)


def loss_and_factor(log_odds: Float[Tensor, "*M"]) -> tuple[Float[Tensor, "*M"], Float[Tensor, "*M"]]:
    """Return the loss -log p, and 1 - p, the factor of the row's score gradients."""
    return softplus(log_odds), flush_denormals(log_odds.sigmoid(), TWO_FACTORS)


def softplus(x: Float[Tensor, "*M"]) -> Float[Tensor, "*M"]:
    """Return log(1 + exp x) to the last digit; torch returns x above 20, which in float64 is 2e-9 too low."""
    return F.softplus(x, threshold=40 if x.dtype == torch.float64 else 20)


def accuracy_of(
    target_score: Float[Tensor, "*M"], best: Float[Tensor, "*M"], num_ties: Tensor, width: Float[Tensor, "*M"]
) -> Float[Tensor, "*M"]:
    """Return [no other score is higher] / (1 + ties). Ties are the other scores no lower than the target's - width."""
    return torch.where(best <= target_score + width, 1 / (1 + num_ties.float()), 0.0)


@torch.no_grad()
def tie_width(
    queries: Float[Tensor, "M D"], lengths: Float[Tensor, "M T"], bias: Float[Tensor, "M T"] | None = None
) -> Float[Tensor, "M 1"]:
    """Return the largest difference from a target's score that counts as a tie: the rounding error of equal scores.

    The error of a product of D terms is at most D eps / 2 times |q| |z|, in any order of summation (Higham 2002,
    Accuracy and Stability of Numerical Algorithms, eq. 3.5), so the scores of two equal vectors differ by at most
    D eps |q| |z|. Columns of the same product are summed in different orders. The width is at least 16 eps |q| |z|,
    since an encoder rounds equal latents differently. `lengths` and `bias` are norms and biases of the targets; the
    queries have the dtype in which products are summed.
    """
    dtype = torch.finfo(queries.dtype)
    least = dtype.tiny**0.5  # squares of lower values underflow
    largest = queries.norm(dim=1, keepdim=True).clamp(min=least) * lengths.amax(1, keepdim=True).clamp(min=least)
    if bias is not None:
        largest = largest + bias.abs().amax(1, keepdim=True)
    return max(16, queries.shape[1]) * dtype.eps * largest


ONE_FACTOR, TWO_FACTORS = 0.7, 0.35  # powers of the smallest normal number: in float32 e^-61 and e^-30


def flush_denormals(score_grads: Float[Tensor, "*M"], power: float = ONE_FACTOR) -> Float[Tensor, "*M"]:
    """Set gradients to zero, in place, if they are so small that products with them would be denormal.

    Denormal operands slow a CPU's matrix products down up to a hundredfold, and a trained critic makes many. The power
    is `TWO_FACTORS` if a derivative is the product of two such numbers; both are far below the precision of float32.
    """
    return F.threshold(score_grads, torch.finfo(score_grads.dtype).tiny ** power, 0.0, inplace=True)
