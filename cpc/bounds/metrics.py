"""Readings over ragged batches and ranks, as torchmetrics: what is kept is added up, never averaged.

Not among `cpc.bounds`' own names, since torchmetrics takes two seconds to import. K steps, B sequences, G batches.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from cpc.bounds.averages import SUMMED, averages, products_of
from cpc.bounds.bound import Bound
from cpc.bounds.estimators import Reading
from cpc.losses.result import Contrast
from cpc.predictors import Step


class BoundMetric(Metric):
    """`BoundTally` for many batches and ranks: a few numbers per step, whatever is added; `bound()` is the result.

    A rank's batches are batches of their own, so the standard error takes every rank's into account. With a single
    batch in all there is none (NaN): `BoundTally` takes its sequences as units.

    Args:
        steps: what is predicted, as `CPC.steps` says.
        options: of torchmetrics.
    """

    full_state_update = False

    def __init__(self, steps: Sequence[Step], **options: Any) -> None:
        super().__init__(**options)
        self.steps = list(steps)
        zeros = torch.zeros(len(self.steps), dtype=torch.float64)
        self.num_batches: Tensor
        self.sums: Tensor
        self.products: Tensor
        self.add_state("num_batches", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("sums", zeros.repeat(len(SUMMED), 1), dist_reduce_fx="sum")
        self.add_state("products", zeros.repeat(4, 1), dist_reduce_fx="sum")

    def update(self, contrast: Contrast) -> None:
        """Add a batch."""
        sums = torch.stack(contrast[1:]).detach().double().sum(2)  # [6, K]
        self.num_batches += 1
        self.sums += sums
        self.products += products_of(sums)

    def compute(self) -> dict[str, Tensor]:
        """The lists of `Bound`, each a tensor over the steps, over everything added on all ranks.

        Raises:
            ValueError: if nothing was added.
        """
        if self.num_batches == 0:
            raise ValueError("no batch was added: there is no bound to compute")
        return {"num_batches": self.num_batches} | averages(self.sums, self.products)

    def bound(self, strategy: str, split: str) -> Bound:
        """What `compute` finds, as a `Bound`.

        Args:
            strategy: whose latents were the candidates.
            split: the part of the data.
        """
        found = dict(self.compute())  # the metric keeps its own for the next call
        num_batches = int(found.pop("num_batches"))
        return Bound.of(found, self.steps, strategy, split, num_batches)


class ReadingMetric(Metric):
    """An estimator over many score matrices: the reading of all rows, and its standard error over the matrices.

    Rows weigh alike, and where the estimator takes a logarithm of a mean, that mean runs over all matrices: the mean of
    their estimates would keep each one's bias. Three numbers per matrix are kept: sums of exponentials have no common
    scale to be added on.

    Args:
        options: of torchmetrics.
    """

    full_state_update = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.num_rows: list[Tensor]
        self.joint_nats: list[Tensor]
        self.log_marginal: list[Tensor]
        self.is_log: Tensor
        for name in ("num_rows", "joint_nats", "log_marginal"):
            self.add_state(name, [], dist_reduce_fx="cat")
        self.add_state("is_log", torch.zeros((), dtype=torch.int64), dist_reduce_fx="max")

    def update(self, reading: Reading) -> None:
        """Add a matrix."""
        joint, log_marginal = (part.detach().double() for part in reading[:2])
        self.num_rows.append(joint.new_tensor([len(joint)]))
        self.joint_nats.append(joint.sum().reshape(1))
        self.log_marginal.append(log_marginal.logsumexp(0).reshape(1))
        self.is_log.fill_(int(reading.is_log))

    def compute(self) -> tuple[Tensor, Tensor]:
        """The estimate and its standard error, in nats, over everything added on all ranks; one matrix alone has none.

        Raises:
            ValueError: if nothing was added.
        """
        if len(self.num_rows) == 0:
            raise ValueError("no score matrix was added: there is nothing to read")
        # lists here, tensors once ranks have gathered them
        num_rows, joint, log_marginal = map(dim_zero_cat, (self.num_rows, self.joint_nats, self.log_marginal))
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
        num_matrices = len(num_rows)
        correction = num_matrices / (num_matrices - 1) if num_matrices > 1 else math.nan
        return nats, (correction * residuals.square().sum()).sqrt() / total
