"""Tractable lower bounds without a ceiling: TUBA, and NWJ, where the baseline is the constant e.

M rows (queries), N candidates.
"""

from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cpc.bounds.estimators.reading import Reading, part


def tuba(
    scores: Float[Tensor, "M N"],
    positives: Int[Tensor, " M"] | None = None,
    candidates: Bool[Tensor, "M N"] | None = None,
    *,
    log_baseline: Float[Tensor, " M"],
) -> Reading:
    """1 + E[s - log a] - E[exp(s) / a]: section 2.2 of Poole et al. 2019 (arXiv:1905.06922), there I_TUBA.

    The first mean runs over positives, the second over negatives; a is any positive function of the row. It is best
    where a is the partition function E[exp s] of the row, since log Z <= Z / a + log a - 1 is an equality there.

    A **lower bound** for any critic and any baseline that does not look at these candidates. Bias: none for
    s = log p(y | x) / p(y) + log a. Variance: that of exp s, which grows as exp(I): with fewer than exp(I) negatives
    the marginal term is nearly always too small and the estimate, unbiased in the mean, nearly always too high.

    Args:
        scores: s; rows are queries, columns candidates.
        positives: the column of each row's positive; None: the diagonal.
        candidates: columns that the row meets; None: all.
        log_baseline: log a of each row.

    Raises:
        ValueError: if a row has no negative, or the diagonal is too short.
    """
    parted = part(scores, positives, candidates)
    relative = parted._replace(negatives=parted.negatives - rearrange(log_baseline, "m -> m 1"))
    return Reading(1 + (parted.positive - log_baseline), relative.log_mean_exp_negatives, is_log=False)


def nwj(
    scores: Float[Tensor, "M N"],
    positives: Int[Tensor, " M"] | None = None,
    candidates: Bool[Tensor, "M N"] | None = None,
) -> Reading:
    """E[s] - E[exp(s - 1)]: Nguyen, Wainwright and Jordan 2010 (arXiv:0809.0853); MINE-f of Belghazi et al. 2018.

    TUBA with a = e (section 2.2 of Poole et al. 2019, arXiv:1905.06922).

    A **lower bound** for any critic. Bias: none for s = 1 + log p(y | x) / p(y); the critic must know the row's
    constant, too, so a critic that was trained by InfoNCE reads next to nothing, or far below zero. Variance: as of
    `tuba`, growing as exp(I).

    Args:
        scores: s; rows are queries, columns candidates.
        positives: the column of each row's positive; None: the diagonal.
        candidates: columns that the row meets; None: all.

    Raises:
        ValueError: if a row has no negative, or the diagonal is too short.
    """
    parted = part(scores, positives, candidates)
    return Reading(parted.positive, parted.log_mean_exp_negatives - 1, is_log=False)
