"""InfoNCE: log N - L.

M rows (queries), N candidates.
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cpc.bounds.estimators.reading import Reading, part


def info_nce(
    scores: Float[Tensor, "M N"],
    positives: Int[Tensor, " M"] | None = None,
    candidates: Bool[Tensor, "M N"] | None = None,
) -> Reading:
    """Log N_i - L_i of every row: section 2.3 and appendix A.1 of van den Oord et al. 2018 (arXiv:1807.03748).

    log N + s_i+ - log sum_j exp s_ij, the positive among the j. Whatever depends on the row alone cancels.

    A **lower bound** in expectation for any critic, if negatives are independent draws of the candidates' marginal: a
    negative that is drawn twice is not (`cpc.candidates.draw_excess_nats`).
    Bias: never above log N, and below the truth where exp(I) is not small against N (`optimal_reading_nats`).
    Variance: small, since no row exceeds log N (figures in docs/results.md).

    Args:
        scores: s; rows are queries, columns candidates.
        positives: the column of each row's positive; None: the diagonal.
        candidates: columns that the row meets; None: all.

    Raises:
        ValueError: if a row has no negative, or the diagonal is too short.

    Example:
        >>> bool(info_nce(torch.zeros(4, 4)).nats.abs() < 1e-6)
        True
    """
    parted = part(scores, positives, candidates)
    joint = parted.num_negatives.add(1).log() - parted.relative.log_sum_exp
    return Reading(joint, torch.full_like(joint, -math.inf), is_log=False)
