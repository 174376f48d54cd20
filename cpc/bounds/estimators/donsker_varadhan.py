"""The Donsker-Varadhan representation, MINE's gradient for it, and SMILE, which clips what it divides by.

M rows (queries), N candidates.
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cpc.bounds.estimators.reading import Reading, log_mean_exp, part

DEFAULT_CLIP = 5.0
DEFAULT_DECAY = 0.99


def donsker_varadhan(
    scores: Float[Tensor, "M N"],
    positives: Int[Tensor, " M"] | None = None,
    candidates: Bool[Tensor, "M N"] | None = None,
) -> Reading:
    """E[s] - log E[exp s], one logarithm for all rows: Donsker and Varadhan; section 3.1 of MINE (arXiv:1801.04062).

    **Neither** bound: the representation is a lower bound for any critic, but the logarithm of a sample mean lies below
    that of the mean, so the estimate is too high, by about var(exp s) / (2 m E[exp s]^2) for m negatives and by far
    more when m is small against exp(I). Bias: positive, vanishing with m. Variance: that of exp s, growing as exp(I)
    (section 4 of Song and Ermon 2020, arXiv:1910.06222). A constant of all rows cancels, a row's own does not.

    Args:
        scores: s; rows are queries, columns candidates.
        positives: the column of each row's positive; None: the diagonal.
        candidates: columns that the row meets; None: all.

    Raises:
        ValueError: if a row has no negative, or the diagonal is too short.
    """
    parted = part(scores, positives, candidates)
    positive = parted.positive.double()  # large scores cancel only between rows: float32 would round each row's log
    return Reading(positive, positive + parted.relative.log_mean_exp_negatives, is_log=True)


def smile(
    scores: Float[Tensor, "M N"],
    positives: Int[Tensor, " M"] | None = None,
    candidates: Bool[Tensor, "M N"] | None = None,
    *,
    clip: int | float = DEFAULT_CLIP,
) -> Reading:
    """E[s] - log E[clip(exp s, exp -tau, exp tau)]: SMILE, section 5 of Song and Ermon 2020 (arXiv:1910.06222).

    **Neither** bound: the clipped partition function may lie below the true one, and then the estimate exceeds the
    information. Bias: set by tau and by how far exp s reaches beyond it. Variance: at most
    (exp tau - exp -tau)^2 / (4 m) relative to the squared partition function, whatever I is. Infinite tau is
    Donsker-Varadhan. The critic is trained on the Jensen-Shannon objective.

    Args:
        scores: s; rows are queries, columns candidates.
        positives: the column of each row's positive; None: the diagonal.
        candidates: columns that the row meets; None: all.
        clip: tau, positive.

    Raises:
        ValueError: on a tau that is not positive, if a row has no negative, or the diagonal is too short.
    """
    if not clip > 0:
        raise ValueError(f"clip={clip} must be positive: negatives' scores are clipped to [-clip, clip]")
    parted = part(scores, positives, candidates)
    clipped = parted.negatives.clamp(-clip, clip).masked_fill(~parted.is_negative, -math.inf)
    return Reading(parted.positive, parted._replace(negatives=clipped).log_mean_exp_negatives, is_log=True)


class MovingAverageGradient:
    """What MINE climbs: Donsker-Varadhan's value, with the gradient that a moving average of E[exp s] corrects.

    The gradient of log of a minibatch mean is biased, since its denominator is the minibatch's; dividing by a moving
    average instead is section 3.2 of Belghazi et al. 2018 (arXiv:1801.04062). Only training needs it: read by
    `donsker_varadhan`.

    Args:
        decay: of the average, in [0, 1); 0 is the plain gradient.

    Raises:
        ValueError: on another decay.
    """

    def __init__(self, decay: int | float = DEFAULT_DECAY) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay={decay} must lie in [0, 1)")
        self.decay = decay
        self.log_average: Tensor | None = None

    def __call__(self, scores: Float[Tensor, "M N"]) -> Float[Tensor, ""]:
        """The estimate on one matrix, positives on the diagonal; updates the average."""
        reading = donsker_varadhan(scores)
        log_mean = log_mean_exp(reading.log_marginal)
        now = log_mean.detach()
        if self.log_average is None or self.decay == 0:
            self.log_average = now
        else:
            self.log_average = torch.logaddexp(math.log(self.decay) + self.log_average, math.log1p(-self.decay) + now)
        ascended = reading.joint_nats.mean() - (log_mean - self.log_average).exp()
        return reading.nats.detach() + ascended - ascended.detach()
