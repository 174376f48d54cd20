"""A critic trained to tell pairs from non-pairs, read by NWJ.

M rows (queries), N candidates.
"""

from einops import reduce
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import softplus

from cpc.bounds.estimators.reading import Reading, part
from cpc.bounds.estimators.tuba import nwj


def jensen_shannon(
    scores: Float[Tensor, "M N"],
    positives: Int[Tensor, " M"] | None = None,
    candidates: Bool[Tensor, "M N"] | None = None,
) -> Float[Tensor, ""]:
    """-E[softplus(-s)] - E[softplus(s)], over positives, over negatives: an objective for training, not information.

    The f-GAN bound on the Jensen-Shannon divergence of Nowozin et al. 2016 (arXiv:1606.00709), in Deep InfoMax (Hjelm
    et al. 2019, arXiv:1808.06670); the maximum is at s = log p(y | x) / p(y). No exponential: gradients are bounded.

    Args:
        scores: s; rows are queries, columns candidates.
        positives: the column of each row's positive; None: the diagonal.
        candidates: columns that the row meets; None: all.

    Raises:
        ValueError: if a row has no negative, or the diagonal is too short.
    """
    parted = part(scores, positives, candidates)
    of_negatives = reduce(softplus(parted.negatives), "m n -> m", "sum") / parted.num_negatives
    return -(softplus(-parted.positive) + of_negatives).mean()


def jensen_shannon_nwj(
    scores: Float[Tensor, "M N"],
    positives: Int[Tensor, " M"] | None = None,
    candidates: Bool[Tensor, "M N"] | None = None,
) -> Reading:
    """NWJ of s + 1, for a critic trained by `jensen_shannon`: section 2.2 of Poole et al. 2019 (arXiv:1905.06922).

    That critic aims at log p(y | x) / p(y), NWJ's best is one more. A **lower bound** for any critic; bias and variance
    are NWJ's, the variance of training is not.

    Args:
        scores: s; rows are queries, columns candidates.
        positives: the column of each row's positive; None: the diagonal.
        candidates: columns that the row meets; None: all.

    Raises:
        ValueError: if a row has no negative, or the diagonal is too short.
    """
    return nwj(scores + 1, positives, candidates)
