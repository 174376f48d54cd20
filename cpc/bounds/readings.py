"""What an estimator reads from score matrices, and what the readings of many come to.

M rows (queries).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class Reading(NamedTuple):
    """mean(joint) - mean(marginal) over rows, or mean(joint) - log mean(marginal): every estimator is one of the two.

    Kept row by row, so that matrices of any shape pool into one reading.

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
    """One reading of all rows. The mean of estimates would weigh few rows like many, and move logs of means.

    Raises:
        ValueError: if they are of different kinds, or none.
    """
    if len({reading.is_log for reading in readings}) != 1:
        raise ValueError(f"{len(readings)} readings of one estimator are needed, at least one, to be pooled")
    joint, log_marginal = (torch.cat(parts) for parts in list(zip(*readings, strict=True))[:2])
    return Reading(joint, log_marginal, readings[0].is_log)


class ReadingTally:
    """Adds up the readings of many score matrices: the reading of all rows, and its standard error over the matrices.

    Keeps three numbers per matrix, since sums of exponentials have no common scale.
    """

    def __init__(self) -> None:
        self.num_rows: list[int] = []
        self.sums: list[Tensor] = []  # joint, and log of the marginal, over the rows of each matrix
        self.is_log = False

    def update(self, reading: Reading) -> None:
        """Add a matrix."""
        joint, log_marginal = (part.detach().double() for part in reading[:2])
        self.num_rows.append(len(joint))
        self.sums.append(torch.stack([joint.sum(), log_marginal.logsumexp(0)]))
        self.is_log = reading.is_log

    def compute(self) -> tuple[float, float]:
        """The estimate and its standard error in nats; NaN is the error of one matrix alone.

        Raises:
            ValueError: if nothing was added.
        """
        if not self.num_rows:
            raise ValueError("no score matrix was added: there is nothing to read")
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
        n = len(num_rows)
        correction = n / (n - 1) if n > 1 else math.nan
        return nats.item(), ((correction * residuals.square().sum()).sqrt() / total).item()


def log_mean_exp(values: Float[Tensor, " M"]) -> Float[Tensor, ""]:
    """Log of the mean of exp."""
    return values.logsumexp(0) - math.log(len(values))
