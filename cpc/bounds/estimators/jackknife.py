"""The standard error of an estimate on one matrix of pairs, which share rows and columns.

N pairs, G groups of them.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from cpc.bounds.estimators.reading import Reading


def standard_error_nats(
    read: Callable[[Tensor], Reading], scores: Float[Tensor, "M N"], num_groups: int = 16
) -> Float[Tensor, ""]:
    """By the jackknife over groups of independent pairs: sqrt((G - 1) / G sum_g (theta_g - mean)^2).

    theta_g is the estimate without the rows *and* columns of group g (Quenouille 1949, Tukey 1958). The standard
    deviation of rows would miss that every row meets the same candidates. That theta_g has fewer candidates moves
    all of them alike, which the mean takes away.

    Args:
        read: an estimator of the scores alone.
        scores: pairs on the diagonal, the i-th independent of the others.
        num_groups: G; what does not divide N falls to the first groups.

    Raises:
        ValueError: if the matrix is not square, or leaves fewer than two pairs without a group.
    """
    num_pairs, num_columns = scores.shape
    if num_pairs != num_columns:
        raise ValueError(f"scores [{num_pairs}, {num_columns}] must be square, with the pairs on the diagonal")
    num_groups = min(num_groups, num_pairs)
    if num_groups < 2 or num_pairs < 3:
        raise ValueError(f"{num_pairs} pairs in {num_groups} groups: 3 pairs in 2 groups are the fewest")
    group = torch.arange(num_pairs, device=scores.device) % num_groups
    without = torch.stack([read(scores[group != g][:, group != g]).nats for g in range(num_groups)])
    return ((num_groups - 1) * (without - without.mean()).square().mean()).sqrt()
