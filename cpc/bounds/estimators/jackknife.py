"""The standard error of an estimate on one matrix of pairs, which share rows and columns.

N pairs, G groups of them.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from cpc.bounds.estimators.reading import Reading


def standard_error_nats(
    read: Callable[[Tensor], Reading], scores: Float[Tensor, "M N"], num_groups: int = 16
) -> Float[Tensor, ""]:
    """By the jackknife over G groups of m independent pairs: (N - m) / sqrt(N m) times the deviation of theta_g.

    theta_g is the estimate without the rows *and* columns of group g (Quenouille 1949, Tukey 1958). The standard
    deviation of rows would miss that every row meets the same candidates. That theta_g has fewer candidates moves
    all of them alike, which their mean takes away: only with groups of one size, so m is N // G, and what is left over
    is in no group. For a mean over pairs the square is unbiased whatever is left over; with nothing, it is the usual
    (G - 1) / G sum_g (theta_g - mean)^2.

    Args:
        read: an estimator of the scores alone.
        scores: pairs on the diagonal, the i-th independent of the others.
        num_groups: G; N where there are fewer pairs.

    Raises:
        ValueError: if the matrix is not square, or leaves fewer than two pairs without a group.
    """
    num_pairs, num_columns = scores.shape
    if num_pairs != num_columns:
        raise ValueError(f"scores [{num_pairs}, {num_columns}] must be square, with the pairs on the diagonal")
    num_groups = min(num_groups, num_pairs)
    if num_groups < 2 or num_pairs < 3:
        raise ValueError(f"{num_pairs} pairs in {num_groups} groups: 3 pairs in 2 groups are the fewest")
    of_group = num_pairs // num_groups
    group = torch.arange(num_pairs, device=scores.device) // of_group
    without = torch.stack([read(scores[group != g][:, group != g]).nats for g in range(num_groups)])
    return without.std() * (num_pairs - of_group) / math.sqrt(num_pairs * of_group)
