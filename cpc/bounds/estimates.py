"""Estimates of information from score matrices, and their combination over several matrices.

M rows (queries).
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from cpc.config.argument_rules import Range


class Estimate(NamedTuple):
    """An estimate mean(joint) - mean(marginal) or mean(joint) - log mean(marginal) over rows, or a function of it.

    Every estimator has one of these forms. The terms are stored per row, so that matrices of any shape can be pooled
    into one estimate.

    Attributes:
        joint_nats: `[M]`, term of the positive of each row.
        log_marginal: `[M]`, log of the term of the negatives; minus infinity if an estimator has no such term.
        is_log: whether the estimate has the form mean(joint) - log mean(marginal).
        curve: differentiable, increasing function of one of the two differences that gives the estimate in nats; None:
            the difference is the estimate.
    """

    joint_nats: Tensor
    log_marginal: Tensor
    is_log: bool
    curve: Callable[[Tensor], Tensor] | None = None

    @property
    def nats(self) -> Float[Tensor, ""]:
        """The differentiable estimate; minus infinity if exp() of a marginal overflows."""
        if self.is_log:
            difference = self.joint_nats.mean() - log_mean_exp(self.log_marginal)
        else:
            difference = (self.joint_nats - self.log_marginal.exp()).mean()
        return difference if self.curve is None else self.curve(difference)


def pooled(estimates: Sequence[Estimate]) -> Estimate:
    """Return the estimate over the rows of all matrices.

    The mean of estimates would weight matrices instead of rows, and would bias logs of means.
    """
    if len({(each.is_log, each.curve) for each in estimates}) != 1:
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
        self.curve: Callable[[Tensor], Tensor] | None = None

    def update(self, estimate: Estimate) -> None:
        """Add a matrix."""
        joint, log_marginal = (part.detach().double() for part in estimate[:2])
        self.num_rows.append(len(joint))
        self.sums.append(torch.stack([joint.sum(), log_marginal.logsumexp(0)]))
        self.is_log, self.curve = estimate.is_log, estimate.curve

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
        if self.curve is not None:
            with torch.enable_grad():
                difference = nats.requires_grad_()
                nats = self.curve(difference)
                (slope,) = torch.autograd.grad(nats, difference)
            nats = nats.detach()
            residuals = slope * residuals
        n = len(self.num_rows)
        correction = n / (n - 1) if n > 1 else math.nan
        return nats.item(), (correction * (residuals / total).square().sum()).sqrt().item()


def log_mean_exp(values: Float[Tensor, " M"]) -> Float[Tensor, ""]:
    """Return the log of the mean of exp(values)."""
    return values.logsumexp(0) - math.log(len(values))
