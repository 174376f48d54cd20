"""Score matrices, divided into positives and negatives; and estimates of information, combined over several matrices.

M rows (queries), N candidates.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cpc.config.argument_rules import Range

ScoreMatrix = Float[Tensor, "M N"]
Positives = Int[Tensor, " M"] | None
Candidates = Bool[Tensor, "M N"] | None


class Scores(NamedTuple):
    """A score matrix, as `[M]` positives and `[M, N]` negatives. Columns without a negative hold -inf."""

    positive: Tensor
    negatives: Tensor
    is_negative: Tensor
    num_negatives: Tensor  # [M], at least 1, in the scores' dtype

    @property
    def relative(self) -> "Scores":
        """Scores minus the positive of the row, which avoids rounding errors of large scores."""
        positive = rearrange(self.positive, "m -> m 1")
        return self._replace(positive=torch.zeros_like(self.positive), negatives=self.negatives - positive)

    @property
    def log_sum_exp(self) -> Float[Tensor, " M"]:
        """The log of the sum of exp s over the candidates of each row, the positive included."""
        return torch.cat([rearrange(self.positive, "m -> m 1"), self.negatives], 1).logsumexp(1)

    @property
    def log_mean_exp_negatives(self) -> Float[Tensor, " M"]:
        """The log of the mean of exp s over the negatives of each row."""
        return self.negatives.logsumexp(1) - self.num_negatives.log()


def split_scores(scores: ScoreMatrix, positives: Positives = None, candidates: Candidates = None) -> Scores:
    """Divide a score matrix into positives and negatives; the arguments are those of `cpc.bounds.estimators`."""
    num_rows, num_columns = scores.shape
    rows = torch.arange(num_rows, device=scores.device)
    if positives is None and num_rows > num_columns:
        raise ValueError(f"scores [{num_rows}, {num_columns}] have no diagonal of positives: give `positives`")
    is_positive = torch.zeros(scores.shape, dtype=torch.bool, device=scores.device)
    is_positive[rows, rows if positives is None else positives] = True
    is_negative = ~is_positive if candidates is None else candidates & ~is_positive
    num_negatives = is_negative.sum(1)
    if num_rows == 0 or bool((num_negatives < 1).any()):
        raise ValueError(f"{int((num_negatives < 1).sum())} of {num_rows} rows of the scores have no negative")
    negatives = scores.masked_fill(~is_negative, -math.inf)
    return Scores(scores[is_positive], negatives, is_negative, num_negatives.to(scores.dtype))


def log_sum_of_others(split: Scores) -> Float[Tensor, "M N"]:
    """Return the log of the sum of exp s over all candidates of the row except the candidate of the column.

    Subtracting exp s from the sum of the row would lose all digits if s dominates the sum. Only the largest negative
    can dominate. For its column the sum is computed separately.
    """
    log_sum = rearrange(split.log_sum_exp, "m -> m 1")
    columns = torch.arange(split.negatives.shape[1], device=log_sum.device)
    is_largest = columns == rearrange(split.negatives.argmax(1), "m -> m 1")
    share = (split.negatives - log_sum).masked_fill(is_largest, -math.inf)
    others = split._replace(negatives=split.negatives.masked_fill(is_largest, -math.inf)).log_sum_exp
    return torch.where(is_largest, rearrange(others, "m -> m 1"), log_sum + torch.log1p(-share.exp()))


class Estimate(NamedTuple):
    """An estimate mean(joint) - mean(marginal) or mean(joint) - log mean(marginal) over rows.

    Every estimator has one of these forms. The terms are stored per row, so that matrices of any shape can be pooled
    into one estimate.
    """

    joint_nats: Tensor  # `[M]`, term of the positive of each row
    log_marginal: Tensor  # `[M]`, log of the term of the negatives; minus infinity if an estimator has no such term
    is_log: bool  # whether the estimate has the form mean(joint) - log mean(marginal)

    @property
    def nats(self) -> Float[Tensor, ""]:
        """The differentiable estimate; minus infinity if exp() of a marginal overflows."""
        if self.is_log:
            return self.joint_nats.mean() - log_mean_exp(self.log_marginal)
        return (self.joint_nats - self.log_marginal.exp()).mean()


def pooled(estimates: Sequence[Estimate]) -> Estimate:
    """Return the estimate over the rows of all matrices.

    The mean of estimates would weight matrices instead of rows, and would bias logs of means.
    """
    if len({each.is_log for each in estimates}) != 1:
        raise ValueError(f"{len(estimates)} estimates cannot be pooled: give at least one, all of one estimator")
    joint, log_marginal = (torch.cat(parts) for parts in list(zip(*estimates, strict=True))[:2])
    return estimates[0]._replace(joint_nats=joint, log_marginal=log_marginal)


class EstimateTally:
    """An accumulator of estimates: it computes the estimate over all rows and its standard error over matrices.

    It stores three numbers per matrix instead of totals, because the exponentials of different matrices have no common
    scale.
    """

    def __init__(self) -> None:
        self.num_rows: list[int] = []
        self.sums: list[Tensor] = []  # of each matrix: sum of joint, log of the sum of marginal, rows
        self.is_log = False

    def update(self, estimate: Estimate) -> None:
        """Add a matrix."""
        joint, log_marginal = (part.detach().double() for part in estimate[:2])
        self.num_rows.append(len(joint))
        self.sums.append(torch.stack([joint.sum(), log_marginal.logsumexp(0)]))
        self.is_log = estimate.is_log

    def compute(self) -> tuple[float, float]:
        """Return the estimate and its standard error in nats; the error of a single matrix is NaN."""
        Range(1).check("the number of rows", sum(self.num_rows))
        joint, log_marginal = torch.stack(self.sums, 1)
        num_rows = torch.tensor(self.num_rows).to(joint)
        total, log_sum = num_rows.sum(), log_marginal.logsumexp(0)
        mean_joint = joint.sum() / total
        if self.is_log:
            nats = mean_joint - log_sum + total.log()
            # d log(mean) = d mean / mean
            residuals = joint - num_rows * mean_joint - ((log_marginal - log_sum).exp() * total - num_rows)
        else:
            values = joint - log_marginal.exp()
            nats = values.sum() / total
            residuals = values - num_rows * nats
        n = len(self.num_rows)
        correction = n / (n - 1) if n > 1 else math.nan
        return nats.item(), (correction * (residuals / total).square().sum()).sqrt().item()


def log_mean_exp(values: Float[Tensor, " M"]) -> Float[Tensor, ""]:
    """Return the log of the mean of exp(values)."""
    return values.logsumexp(0) - math.log(len(values))
