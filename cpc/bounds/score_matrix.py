"""A score matrix, divided into the positive and the negatives of each row.

M rows (queries), N candidates.
"""

import math
from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

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
