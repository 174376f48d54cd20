"""Estimators of mutual information from a score matrix: rows are queries, columns candidates.

M rows (queries), N candidates. All but `leave_one_out` take

- `scores`, s, of any finite size; a negative's may also be minus infinity (a candidate that cannot be);
- `positives`, the column of each row's positive; None: the diagonal;
- `candidates`, the columns that a row is compared with, its positive or not; None: all;

and raise a ValueError if a row has no negative, or if the diagonal is meant and there are more rows than columns.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from einops import rearrange, reduce
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cpc.bounds.readings import Reading, log_mean_exp
from cpc.losses.engine.score_gradients import softplus

DEFAULT_ALPHA, DEFAULT_CLIP, DEFAULT_DECAY = 0.01, 5.0, 0.99
ScoreMatrix = Float[Tensor, "M N"]
Positives = Int[Tensor, " M"] | None
Candidates = Bool[Tensor, "M N"] | None


def info_nce(scores: ScoreMatrix, positives: Positives = None, candidates: Candidates = None) -> Reading:
    """Log N_i - L_i of every row: section 2.3 and appendix A.1 of van den Oord et al. 2018 (arXiv:1807.03748).

    log N + s_i+ - log sum_j exp s_ij, the positive among the j. Whatever depends on the row alone cancels.

    A **lower bound** in expectation for any critic, if negatives are independent draws of the candidates' marginal: a
    negative that is drawn twice is not (`cpc.candidates.draw_excess_nats`).
    Bias: never above log N, and below the truth where exp(I) is not small against N (`optimal_reading_nats`).
    Variance: small, since no row exceeds log N (figures in docs/results/estimators.md).

    Example:
        >>> bool(info_nce(torch.zeros(4, 4)).nats.abs() < 1e-6)
        True
    """
    parted = _part(scores, positives, candidates)
    return _without_marginal(parted.num_negatives.add(1).log() - parted.relative.log_sum_exp)


def tuba(
    scores: ScoreMatrix,
    positives: Positives = None,
    candidates: Candidates = None,
    *,
    log_baseline: Float[Tensor, " M"],
) -> Reading:
    """1 + E[s - log a] - E[exp(s) / a]: section 2.2 of Poole et al. 2019 (arXiv:1905.06922), there I_TUBA.

    The first mean runs over positives, the second over negatives; a is any positive function of the row, and
    `log_baseline` its logarithm. Best is the partition function E[exp s] of the row, since log Z <= Z / a + log a - 1
    is an equality there.

    A **lower bound** for any critic and any baseline that does not look at these candidates. Bias: none for
    s = log p(y | x) / p(y) + log a. Variance: that of exp s, which grows as exp(I): with fewer than exp(I) negatives
    the marginal term is nearly always too small and the estimate, unbiased in the mean, nearly always too high.
    """
    parted = _part(scores, positives, candidates)
    relative = parted._replace(negatives=parted.negatives - rearrange(log_baseline, "m -> m 1"))
    return Reading(1 + (parted.positive - log_baseline), relative.log_mean_exp_negatives, is_log=False)


def nwj(scores: ScoreMatrix, positives: Positives = None, candidates: Candidates = None) -> Reading:
    """E[s] - E[exp(s - 1)]: Nguyen, Wainwright and Jordan 2010 (arXiv:0809.0853); MINE-f of Belghazi et al. 2018.

    TUBA with a = e (section 2.2 of Poole et al. 2019, arXiv:1905.06922).

    A **lower bound** for any critic. Bias: none for s = 1 + log p(y | x) / p(y); the critic must know the row's
    constant, too, so a critic that was trained by InfoNCE reads next to nothing, or far below zero. Variance: as of
    `tuba`, growing as exp(I).
    """
    parted = _part(scores, positives, candidates)
    return Reading(parted.positive, parted.log_mean_exp_negatives - 1, is_log=False)


def interpolated(
    scores: ScoreMatrix,
    positives: Positives = None,
    candidates: Candidates = None,
    *,
    log_baseline: Float[Tensor, " M"],
    alpha: int | float = DEFAULT_ALPHA,
) -> Reading:
    """TUBA with the baseline alpha m_j + (1 - alpha) a: section 2.4 of Poole et al. 2019 (arXiv:1905.06922), I_alpha.

    m_j is the mean of exp s over the row's candidates, the positive among them, without the negative j; `log_baseline`
    is log a of each row, `alpha` lies in [0, 1]. The estimate
    1 + E[s+ - log(alpha m_j + (1 - alpha) a)] - E[exp s_j / (alpha m_j + (1 - alpha) a)] is averaged over j.

    A **lower bound** for any critic, if negatives are independent draws: then no baseline looks at the negative that it
    divides, as it would at one drawn twice. Bias: reads at most 1 + log((N - 1) / alpha). Variance: for good critics
    between that of `tuba` (alpha = 0) and of InfoNCE with N - 1 candidates (alpha = 1). There is no floor:
    a critic that overrates negatives reads far below zero, even with alpha = 1.
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha={alpha} must lie in [0, 1]: 0 is TUBA, 1 has the candidates' mean as its baseline")
    absolute = _part(scores, positives, candidates)
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


def donsker_varadhan(scores: ScoreMatrix, positives: Positives = None, candidates: Candidates = None) -> Reading:
    """E[s] - log E[exp s], one logarithm for all rows: Donsker and Varadhan; section 3.1 of MINE (arXiv:1801.04062).

    **Neither** bound: the representation is a lower bound for any critic, but the logarithm of a sample mean lies below
    that of the mean, so the estimate is too high, by about var(exp s) / (2 m E[exp s]^2) for m negatives and by far
    more when m is small against exp(I). Bias: positive, vanishing with m. Variance: that of exp s, growing as exp(I)
    (section 4 of Song and Ermon 2020, arXiv:1910.06222). A constant of all rows cancels, a row's own does not.
    """
    parted = _part(scores, positives, candidates)
    positive = parted.positive.double()  # large scores cancel only between rows: float32 would round each row's log
    return Reading(positive, positive + parted.relative.log_mean_exp_negatives, is_log=True)


def smile(
    scores: ScoreMatrix,
    positives: Positives = None,
    candidates: Candidates = None,
    *,
    clip: int | float = DEFAULT_CLIP,
) -> Reading:
    """E[s] - log E[clip(exp s, exp -tau, exp tau)]: SMILE, section 5 of Song and Ermon 2020 (arXiv:1910.06222).

    **Neither** bound: the clipped partition function may lie below the true one, and then the estimate exceeds the
    information. Bias: set by tau and by how far exp s reaches beyond it. Variance: at most
    (exp tau - exp -tau)^2 / (4 m) relative to the squared partition function, whatever I is. Infinite tau is
    Donsker-Varadhan. The critic is trained on the Jensen-Shannon objective. `clip` is tau, positive.
    """
    if not clip > 0:
        raise ValueError(f"clip={clip} must be positive: negatives' scores are clipped to [-clip, clip]")
    parted = _part(scores, positives, candidates)
    clipped = parted.negatives.clamp(-clip, clip).masked_fill(~parted.is_negative, -math.inf)
    return Reading(parted.positive, parted._replace(negatives=clipped).log_mean_exp_negatives, is_log=True)


def jensen_shannon_nwj(scores: ScoreMatrix, positives: Positives = None, candidates: Candidates = None) -> Reading:
    """NWJ of s + 1, for a critic trained by `jensen_shannon`: section 2.2 of Poole et al. 2019 (arXiv:1905.06922).

    That critic aims at log p(y | x) / p(y), NWJ's best is one more. A **lower bound** for any critic; bias and variance
    are NWJ's, the variance of training is not.
    """
    return nwj(scores + 1, positives, candidates)


def leave_one_out(log_conditional: ScoreMatrix) -> Reading:
    """E[log p(y_i | x_i) - log mean over j != i of p(y_i | x_j)]: section 2.5 of Poole et al. 2019 (arXiv:1905.06922).

    An **upper bound** in expectation: the mean over other x stands for p(y), and the mean of -log of an average is at
    least -log of the mean. Bias: positive, vanishing once N is large against exp(I), and without limit below that.
    Variance: moderate, no exponential is outside a logarithm. A learnt critic is not a conditional density: its
    constants of the row would count.

    Args:
        log_conditional: log p(y_j | x_i), rows x_i, square and of two pairs at least; any function of y_j alone may be
            added, so that log p(y | x) / p(y) serves as well.
    """
    num_rows, num_columns = log_conditional.shape
    if num_rows != num_columns:
        raise ValueError(f"log_conditional [{num_rows}, {num_columns}] must be square: pair i is its entry (i, i)")
    parted = _part(rearrange(log_conditional, "x y -> y x"))
    return _without_marginal(-parted.relative.log_mean_exp_negatives)


def jensen_shannon(scores: ScoreMatrix) -> Float[Tensor, ""]:
    """-E[softplus(-s)] - E[softplus(s)], over positives, over negatives: an objective for training, not information.

    The f-GAN bound on the Jensen-Shannon divergence of Nowozin et al. 2016 (arXiv:1606.00709), in Deep InfoMax (Hjelm
    et al. 2019, arXiv:1808.06670); the maximum is at s = log p(y | x) / p(y). No exponential: gradients are bounded.
    """
    parted = _part(scores)
    of_negatives = reduce(softplus(parted.negatives), "m n -> m", "sum") / parted.num_negatives
    return -(softplus(-parted.positive) + of_negatives).mean()


class MovingAverageGradient:
    """MINE's objective: Donsker-Varadhan's value, with a gradient corrected by a moving average of E[exp s].

    The gradient of log of a minibatch mean is biased, since its denominator is the minibatch's; dividing by a moving
    average instead is section 3.2 of Belghazi et al. 2018 (arXiv:1801.04062).

    Args:
        decay: of the average, in [0, 1); 0 is the plain gradient, another is a ValueError.
    """

    def __init__(self, decay: int | float = DEFAULT_DECAY) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay={decay} must lie in [0, 1)")
        self.decay = decay
        self.log_average: Tensor | None = None

    def __call__(self, scores: ScoreMatrix) -> Float[Tensor, ""]:
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


@dataclass(frozen=True)
class Estimator:
    """One way to read information from a score matrix.

    Attributes:
        read: scores (and `log_baseline`, if it needs one) -> `Reading`.
        side: of the truth that the expected reading lies on, for any critic and any number of candidates.
        needs_baseline: takes `log_baseline`, the log of a positive function of the row.
        needs_conditional: takes log p(y | x), which only a task of known information has: no critic is trained for it.
        best_offset: what the best scores have beyond log p(y | x) / p(y).
        objective: makes what training climbs, where that is not the reading itself; estimators that share it can read
            one and the same critic.
    """

    read: Callable[..., Reading]
    side: Literal["lower", "upper", "neither"]
    needs_baseline: bool = False
    needs_conditional: bool = False
    best_offset: float = 0.0
    objective: Callable[[], Callable[[Tensor], Tensor]] | None = None


def _jensen_shannon() -> Callable[[Tensor], Tensor]:
    return jensen_shannon


ESTIMATORS: dict[str, Estimator] = {
    "info_nce": Estimator(info_nce, "lower"),
    "nwj": Estimator(nwj, "lower", best_offset=1.0),
    "tuba": Estimator(tuba, "lower", needs_baseline=True),
    "interpolated": Estimator(interpolated, "lower", needs_baseline=True),
    "dv": Estimator(donsker_varadhan, "neither"),
    "mine": Estimator(donsker_varadhan, "neither", objective=MovingAverageGradient),
    "js": Estimator(jensen_shannon_nwj, "lower", objective=_jensen_shannon),
    "smile": Estimator(smile, "neither", objective=_jensen_shannon),
    "leave_one_out": Estimator(leave_one_out, "upper", needs_conditional=True),
}


class _Scores(NamedTuple):
    """A score matrix, parted into `[M]` positives and `[M, N]` negatives: minus infinity where a column is none."""

    positive: Tensor
    negatives: Tensor
    is_negative: Tensor
    num_negatives: Tensor  # [M], at least 1, in the scores' dtype

    @property
    def relative(self) -> "_Scores":
        """Scores less the row's positive: large ones lose no digit."""
        of_positive = rearrange(self.positive, "m -> m 1")
        return self._replace(positive=torch.zeros_like(self.positive), negatives=self.negatives - of_positive)

    @property
    def log_sum_exp(self) -> Float[Tensor, " M"]:
        """Log of the sum of exp s over a row's candidates, the positive among them."""
        return torch.cat([rearrange(self.positive, "m -> m 1"), self.negatives], 1).logsumexp(1)

    @property
    def log_mean_exp_negatives(self) -> Float[Tensor, " M"]:
        """Log of the mean of exp s over a row's negatives."""
        return self.negatives.logsumexp(1) - self.num_negatives.log()


def _part(scores: ScoreMatrix, positives: Positives = None, candidates: Candidates = None) -> _Scores:
    num_rows, num_columns = scores.shape
    rows = torch.arange(num_rows, device=scores.device)
    if positives is None and num_rows > num_columns:
        raise ValueError(
            f"scores [{num_rows}, {num_columns}] have no diagonal of {num_rows} positives: say where they are with "
            "`positives`"
        )
    is_positive = torch.zeros(scores.shape, dtype=torch.bool, device=scores.device)
    is_positive[rows, rows if positives is None else positives] = True
    is_negative = ~is_positive if candidates is None else candidates & ~is_positive
    num_negatives = is_negative.sum(1)
    if num_rows == 0 or bool((num_negatives < 1).any()):
        raise ValueError(
            f"{int((num_negatives < 1).sum())} of {num_rows} rows of the scores have no negative: an estimate needs at "
            "least one row, and one negative in each"
        )
    negatives = scores.masked_fill(~is_negative, -math.inf)
    return _Scores(scores[is_positive], negatives, is_negative, num_negatives.to(scores.dtype))


def _without_marginal(joint_nats: Tensor) -> Reading:
    return Reading(joint_nats, torch.full_like(joint_nats, -math.inf), is_log=False)


def _log_sum_of_others(parted: _Scores) -> Float[Tensor, "M N"]:
    """Log of the sum of exp s over all candidates of the row but the column's.

    Taking exp s from the sum loses every digit where s is nearly all of it. Only the largest can be: its others are
    summed by themselves.
    """
    log_sum = rearrange(parted.log_sum_exp, "m -> m 1")
    columns = torch.arange(parted.negatives.shape[1], device=log_sum.device)
    is_largest = columns == rearrange(parted.negatives.argmax(1), "m -> m 1")
    share = (parted.negatives - log_sum).masked_fill(is_largest, -math.inf)
    without_it = parted._replace(negatives=parted.negatives.masked_fill(is_largest, -math.inf)).log_sum_exp
    return torch.where(is_largest, rearrange(without_it, "m -> m 1"), log_sum + torch.log1p(-share.exp()))
