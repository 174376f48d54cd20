"""A baseline for a critic that does not know its rows' constants, as one trained by InfoNCE does not.

M rows (queries), N candidates.
"""

import math

from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cpc.bounds.estimators.reading import part


def split_baseline(
    scores: Float[Tensor, "M N"],
    positives: Int[Tensor, " M"] | None = None,
    candidates: Bool[Tensor, "M N"] | None = None,
) -> tuple[Float[Tensor, " M"], Bool[Tensor, "M N"]]:
    """Log of the mean of exp s over the first half of each row's negatives, and the other half as candidates.

    The halves are draws of their own, so TUBA and I_alpha with this baseline stay lower bounds on what is left. By
    columns, not at random: neighbours of one sequence depend on each other and should stand in the same half.

    Args:
        scores: s; rows are queries, columns candidates.
        positives: the column of each row's positive; None: the diagonal.
        candidates: columns that the row meets; None: all.

    Raises:
        ValueError: if a row has fewer than two negatives.
    """
    parted = part(scores, positives, candidates)
    if bool((parted.num_negatives < 2).any()):
        raise ValueError("a baseline from half of the negatives needs two negatives in each row, N of at least 3")
    place = parted.is_negative.cumsum(1)
    is_first = parted.is_negative & (place <= rearrange(parted.num_negatives // 2, "m -> m 1"))
    log_sum = scores.masked_fill(~is_first, -math.inf).logsumexp(1)
    return log_sum - is_first.sum(1).to(scores.dtype).log(), parted.is_negative & ~is_first
