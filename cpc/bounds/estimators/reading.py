"""What an estimator reads from one score matrix, row by row, so that matrices of any shape pool into one reading.

M rows (queries), N candidates.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor


class Reading(NamedTuple):
    """mean(joint) - mean(marginal) over rows, or mean(joint) - log mean(marginal): every estimator is one of the two.

    Attributes:
        joint_nats: `[M]`, what the positive of each row gives.
        log_marginal: `[M]`, log of what its negatives take; minus infinity where an estimator has no such term.
        is_log: whether the mean over all rows is taken inside the logarithm.
    """

    joint_nats: Tensor
    log_marginal: Tensor
    is_log: bool

    @property
    def nats(self) -> Float[Tensor, ""]:
        """The estimate; differentiable. Minus infinity where exp() of a marginal is beyond the dtype."""
        if self.is_log:
            return self.joint_nats.mean() - log_mean_exp(self.log_marginal)
        return (self.joint_nats - self.log_marginal.exp()).mean()


def pooled(readings: Sequence[Reading]) -> Reading:
    """One reading of all rows: not the mean of estimates, which weighs few rows like many and moves logs of means.

    Raises:
        ValueError: if they are of different kinds, or none.
    """
    if len({reading.is_log for reading in readings}) != 1:
        raise ValueError(f"{len(readings)} readings of one estimator are needed, at least one, to be pooled")
    joint, log_marginal = (torch.cat(parts) for parts in list(zip(*readings, strict=True))[:2])
    return Reading(joint, log_marginal, readings[0].is_log)


class Scores(NamedTuple):
    """A score matrix, parted.

    Attributes:
        positive: `[M]`.
        negatives: `[M, N]`, minus infinity where a column is no negative of the row.
        is_negative: `[M, N]`.
        num_negatives: `[M]`, at least 1, in the scores' dtype.
    """

    positive: Tensor
    negatives: Tensor
    is_negative: Tensor
    num_negatives: Tensor

    @property
    def relative(self) -> "Scores":
        """Scores less the row's positive, which large ones spoil no digit of."""
        of_positive = rearrange(self.positive, "m -> m 1")
        return self._replace(positive=torch.zeros_like(self.positive), negatives=self.negatives - of_positive)

    @property
    def log_sum_exp(self) -> Float[Tensor, " M"]:
        """Log of the sum of exp s over a row's candidates, the positive among them."""
        return torch.cat([rearrange(self.positive, "m -> m 1"), self.negatives], 1).logsumexp(1)

    @property
    def log_mean_exp_negatives(self) -> Float[Tensor, " M"]:
        """Log of the mean of exp s over a row's negatives."""
        return self.negatives.logsumexp(1) - self.num_negatives.log()


def part(
    scores: Float[Tensor, "M N"],
    positives: Int[Tensor, " M"] | None,
    candidates: Bool[Tensor, "M N"] | None,
) -> Scores:
    """Tell positives from negatives.

    Args:
        scores: of any finite size; a negative's may be minus infinity (a candidate that cannot be), a positive's not.
        positives: the column of each row's positive; None: the diagonal.
        candidates: columns that the row meets, its positive or not; None: all.

    Raises:
        ValueError: if the diagonal is meant and there are more rows than columns, or if a row has no negative.
    """
    num_rows, num_columns = scores.shape
    if positives is None:
        if num_rows > num_columns:
            raise ValueError(
                f"scores [{num_rows}, {num_columns}] have no diagonal of {num_rows} positives: say where they stand "
                "with `positives`"
            )
        positives = torch.arange(num_rows, device=scores.device)
    is_positive = torch.zeros(scores.shape, dtype=torch.bool, device=scores.device)
    is_positive[torch.arange(num_rows, device=scores.device), positives] = True
    is_negative = ~is_positive if candidates is None else candidates & ~is_positive
    num_negatives = is_negative.sum(1)
    if num_rows == 0 or bool((num_negatives < 1).any()):
        raise ValueError(
            f"{int((num_negatives < 1).sum())} of {num_rows} rows of the scores have no negative: an estimate needs at "
            "least one row, and one negative in each"
        )
    return Scores(
        scores[is_positive], scores.masked_fill(~is_negative, -math.inf), is_negative, num_negatives.to(scores.dtype)
    )


def log_mean_exp(values: Float[Tensor, " M"]) -> Float[Tensor, ""]:
    """Log of the mean of exp."""
    return values.logsumexp(0) - math.log(len(values))
