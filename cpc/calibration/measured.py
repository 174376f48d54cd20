"""An estimator's bias and variance on a task: many matrices, one estimate each.

R matrices, N candidates.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from cpc.bounds.estimators import ESTIMATORS
from cpc.bounds.tasks import Task


@dataclass(frozen=True)
class Measured:
    """Estimates of one matrix each, against the truth.

    Attributes:
        mean_nats: over matrices.
        standard_error_nats: of the mean.
        bias_nats: mean less truth.
        standard_deviation_nats: of an estimate; its square is the variance.
    """

    mean_nats: float
    standard_error_nats: float
    bias_nats: float
    standard_deviation_nats: float


def measured(estimates: Iterable[Tensor], true_nats: float) -> Measured:
    """What estimates of single matrices come to."""
    nats = torch.stack(list(estimates)).double()
    mean, deviation = nats.mean().item(), nats.std().item()
    return Measured(mean, deviation / math.sqrt(len(nats)), mean - true_nats, deviation)


@torch.no_grad()
def measure_exact(
    task: Task, names: Iterable[str], num_candidates: int, num_matrices: int, generator: torch.Generator
) -> dict[str, Measured]:
    """With the critic that knows everything, each estimator at its own best offset; the exact baseline is 1.

    Args:
        task: whose truth is known.
        names: of estimators.
        num_candidates: N, pairs of a matrix.
        num_matrices: R.
        generator: source of the pairs.
    """
    estimates: dict[str, list[Tensor]] = {name: [] for name in names}
    for pairs in draws(task, num_candidates, num_matrices, generator):
        scores = task.log_density_ratio(*pairs)
        for name, of_name in estimates.items():
            of_name.append(read(name, scores + ESTIMATORS[name].best_offset, scores.new_zeros(num_candidates)))
    return {name: measured(of_name, task.mutual_information_nats) for name, of_name in estimates.items()}


def draws(
    task: Task, num_candidates: int, num_matrices: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """The pairs of each matrix."""
    return (task.sample(num_candidates, generator) for _ in range(num_matrices))


def read(name: str, scores: Tensor, log_baseline: Tensor | None) -> Tensor:
    """The estimate of one matrix, with the baseline if the estimator takes one."""
    estimator = ESTIMATORS[name]
    return estimator.read(scores, **({"log_baseline": log_baseline} if estimator.needs_baseline else {})).nats
