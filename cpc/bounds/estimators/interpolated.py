"""Between InfoNCE and TUBA: I_alpha trades bias against variance.

M rows (queries), N candidates.
"""

import math

import torch
from einops import rearrange, reduce
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cpc.bounds.estimators.reading import Reading, Scores, part

DEFAULT_ALPHA = 0.01


def interpolated(
    scores: Float[Tensor, "M N"],
    positives: Int[Tensor, " M"] | None = None,
    candidates: Bool[Tensor, "M N"] | None = None,
    *,
    log_baseline: Float[Tensor, " M"],
    alpha: int | float = DEFAULT_ALPHA,
) -> Reading:
    """TUBA with the baseline alpha m_j + (1 - alpha) a: section 2.4 of Poole et al. 2019 (arXiv:1905.06922), I_alpha.

    m_j is the mean of exp s over the row's candidates, the positive among them, without the negative j. The estimate
    1 + E[s+ - log(alpha m_j + (1 - alpha) a)] - E[exp s_j / (alpha m_j + (1 - alpha) a)] is averaged over j.

    A **lower bound** for any critic, if negatives are independent draws: then no baseline looks at the negative that it
    divides, as it would at one drawn twice. Bias: reads at most 1 + log((N - 1) / alpha). Variance: for good critics
    between that of `tuba` (alpha = 0) and of InfoNCE with N - 1 candidates (alpha = 1). The ceiling is no floor:
    a critic that overrates negatives reads far below zero, even with alpha = 1.

    Args:
        scores: s; rows are queries, columns candidates.
        positives: the column of each row's positive; None: the diagonal.
        candidates: columns that the row meets; None: all.
        log_baseline: log a of each row.
        alpha: share of m_j, from 0 to 1.

    Raises:
        ValueError: on an alpha outside [0, 1], if a row has no negative, or the diagonal is too short.
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha={alpha} must lie in [0, 1]: 0 is TUBA, 1 has the candidates' mean as its baseline")
    absolute = part(scores, positives, candidates)
    parted, log_baseline = absolute.relative, log_baseline - absolute.positive  # which leaves the estimate as it is
    log_mean_of_others = _log_sum_of_others(parted) - rearrange(parted.num_negatives, "m -> m 1").log()
    log_a = rearrange(log_baseline, "m -> m 1").expand_as(log_mean_of_others)
    log_mixed = (
        torch.logaddexp(math.log(alpha) + log_mean_of_others, math.log1p(-alpha) + log_a)
        if 0 < alpha < 1
        else (log_mean_of_others if alpha else log_a)
    )
    mean_log_mixed = reduce(log_mixed.where(parted.is_negative, 0), "m n -> m", "sum") / parted.num_negatives
    log_marginal = (parted.negatives - log_mixed).logsumexp(1) - parted.num_negatives.log()
    return Reading(1 - mean_log_mixed, log_marginal, is_log=False)


def _log_sum_of_others(parted: Scores) -> Float[Tensor, "M N"]:
    """Log of the sum of exp s over all candidates of the row but the column's.

    Taking exp s from the sum loses every digit where s is nearly all of it, which only the largest can be: that one's
    others are summed by themselves.
    """
    log_sum = rearrange(parted.log_sum_exp, "m -> m 1")
    columns = torch.arange(parted.negatives.shape[1], device=log_sum.device)
    is_largest = columns == rearrange(parted.negatives.argmax(1), "m -> m 1")
    share = (parted.negatives - log_sum).masked_fill(is_largest, -math.inf)
    without_it = parted._replace(negatives=parted.negatives.masked_fill(is_largest, -math.inf)).log_sum_exp
    return torch.where(is_largest, rearrange(without_it, "m -> m 1"), log_sum + torch.log1p(-share.exp()))
