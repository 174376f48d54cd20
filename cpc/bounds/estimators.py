"""Estimators of mutual information from a score matrix: rows are queries, columns are candidates.

M rows (queries), N candidates. All functions except `leave_one_out` take

- `scores`, s, finite numbers; the score of a negative may also be minus infinity (an impossible candidate);
- `positives`, the column of the positive of each row; None: the diagonal;
- `candidates`, a mask of the columns that a row is compared with, with or without its positive; None: all columns;

and raise ValueError if a row has no negative, or if `positives` is None and there are more rows than columns.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from einops import rearrange, reduce
from jaxtyping import Float
from torch import Tensor

from cpc.bounds.critic_losses import anchored_info_nce, jensen_shannon
from cpc.bounds.estimates import (
    Candidates,
    Estimate,
    Positives,
    ScoreMatrix,
    log_mean_exp,
    log_sum_of_others,
    split_scores,
)
from cpc.config.argument_rules import Range
from cpc.data.tensors import check_tensor

DEFAULT_ALPHA, DEFAULT_CLIP, DEFAULT_DECAY = 0.01, 5.0, 0.99


def info_nce(scores: ScoreMatrix, positives: Positives = None, candidates: Candidates = None) -> Estimate:
    """Return InfoNCE, log N_i - L_i of every row: section 2.3 and appendix A.1 of van den Oord et al. 2018
    (arXiv:1807.03748).

    The estimate of a row is log N + s_i+ - log sum_j exp s_ij, where j includes the positive. Constants of a row
    cancel.

    A **lower bound** in expectation for any critic, if negatives are independent samples of the marginal of the
    candidates. Negatives must not repeat (`cpc.candidates.draw_excess_nats`).
    Bias: never above log N, and below the truth unless exp(I) is small against N (`optimal_bound_nats`).
    Variance: small, because no row exceeds log N (figures in docs/results/estimators.md).

    Example:
        >>> bool(info_nce(torch.zeros(4, 4)).nats.abs() < 1e-6)
        True

    Raises:
        ValueError: if shapes, dtypes or devices do not fit each other, or a row has no negatives.
    """
    split = split_scores(scores, positives, candidates)
    return _joint_only(split.num_negatives.add(1).log() - split.relative.log_sum_exp)


def tuba(
    scores: ScoreMatrix,
    positives: Positives = None,
    candidates: Candidates = None,
    *,
    log_baseline: Float[Tensor, " M"],
) -> Estimate:
    """Return TUBA, 1 + E[s - log a] - E[exp(s) / a]: section 2.2 of Poole et al. 2019 (arXiv:1905.06922), there I_TUBA.

    The first mean is over positives, the second over negatives; a is any positive function of the row, and
    `log_baseline` its logarithm. The best a is the partition function E[exp s] of the row, because
    log Z <= Z / a + log a - 1 is then an equality.

    A **lower bound** for any critic and any baseline that does not depend on these candidates. Bias: none for
    s = log p(y | x) / p(y) + log a. Variance: that of exp s, which grows as exp(I). With fewer than exp(I) negatives
    the marginal term is nearly always too small, so the estimate is nearly always too high, although its mean is right.
    """
    split = split_scores(scores, positives, candidates)
    relative = split._replace(negatives=split.negatives - rearrange(log_baseline, "m -> m 1"))
    return Estimate(1 + (split.positive - log_baseline), relative.log_mean_exp_negatives, is_log=False)


def nwj(scores: ScoreMatrix, positives: Positives = None, candidates: Candidates = None) -> Estimate:
    """Return NWJ, E[s] - E[exp(s - 1)]: Nguyen, Wainwright and Jordan 2010 (arXiv:0809.0853); MINE-f of Belghazi et al.
    2018.

    This is TUBA with a = e (section 2.2 of Poole et al. 2019, arXiv:1905.06922).

    A **lower bound** for any critic. Bias: none for s = 1 + log p(y | x) / p(y). The critic must include the
    constant of the row, so with a critic that was trained by InfoNCE the estimate is near zero, or far below. Variance:
    as for `tuba`, growing as exp(I).
    """
    split = split_scores(scores, positives, candidates)
    return Estimate(split.positive, split.log_mean_exp_negatives - 1, is_log=False)


def interpolated(
    scores: ScoreMatrix,
    positives: Positives = None,
    candidates: Candidates = None,
    *,
    log_baseline: Float[Tensor, " M"],
    alpha: int | float = DEFAULT_ALPHA,
) -> Estimate:
    """Return TUBA with the baseline alpha m_j + (1 - alpha) a: section 2.4 of Poole et al. 2019 (arXiv:1905.06922),
    I_alpha.

    m_j is the mean of exp s over the row's candidates, including the positive, but without the negative j.
    `log_baseline` is log a of each row, and `alpha` lies in [0, 1]. The estimate 1 + E[s+ - log(alpha m_j + (1 - alpha)
    a)] - E[exp s_j / (alpha m_j + (1 - alpha) a)] is averaged over j.

    A **lower bound** for any critic, if negatives are independent and do not repeat: then the baseline of a term does
    not depend on the negative of that term. Bias: the estimate is at most 1 + log((N - 1) / alpha). Variance: for good
    critics between the variances of `tuba` (alpha = 0) and of InfoNCE with N - 1 candidates (alpha = 1). There is no
    lower limit: for a critic that overrates negatives the estimate is far below zero, even with alpha = 1.
    """
    Range(0, 1).check("`alpha`", alpha)
    absolute = split_scores(scores, positives, candidates)
    split, log_baseline = absolute.relative, log_baseline - absolute.positive  # does not change the estimate
    log_mean_of_others = log_sum_of_others(split) - rearrange(split.num_negatives, "m -> m 1").log()
    log_a = rearrange(log_baseline, "m -> m 1").expand_as(log_mean_of_others)
    log_mixed = (
        torch.logaddexp(math.log(alpha) + log_mean_of_others, math.log1p(-alpha) + log_a)
        if 0 < alpha < 1
        else (log_mean_of_others if alpha else log_a)
    )
    mean_log_mixed = reduce(log_mixed.where(split.is_negative, 0), "m n -> m", "sum") / split.num_negatives
    log_marginal = (split.negatives - log_mixed).logsumexp(1) - split.num_negatives.log()
    return Estimate(1 - mean_log_mixed, log_marginal, is_log=False)


def donsker_varadhan(scores: ScoreMatrix, positives: Positives = None, candidates: Candidates = None) -> Estimate:
    """Return E[s] - log E[exp s] with one logarithm for all rows: Donsker and Varadhan; section 3.1 of MINE
    (arXiv:1801.04062).

    **Neither** bound. The representation is a lower bound for any critic, but the logarithm of a sample mean lies on
    average below the logarithm of the mean, so the estimate is too high: by about var(exp s) / (2 m E[exp s]^2) for m
    negatives, and by far more if m is small against exp(I). Bias: positive, vanishing for large m. Variance: that of
    exp s, which grows as exp(I) (section 4 of Song and Ermon 2020, arXiv:1910.06222). A constant that all rows share
    cancels, a constant of one row does not.
    """
    split = split_scores(scores, positives, candidates)
    # In float64: float32 would round the log of each row, and large scores cancel only between rows.
    positive = split.positive.double()
    return Estimate(positive, positive + split.relative.log_mean_exp_negatives, is_log=True)


def smile(
    scores: ScoreMatrix, positives: Positives = None, candidates: Candidates = None, *, clip: int | float = DEFAULT_CLIP
) -> Estimate:
    """Return E[s] - log E[clip(exp s, exp -tau, exp tau)]: SMILE, section 5 of Song and Ermon 2020 (arXiv:1910.06222).

    **Neither** bound: the clipped partition function may lie below the true one, and then the estimate exceeds the
    information. Bias: depends on tau and on how far scores exceed tau. Variance: at most (exp tau - exp -tau)^2 / (4 m)
    relative to the squared partition function, whatever I is. Infinite tau is Donsker-Varadhan. Train the critic with
    the Jensen-Shannon objective. `clip` is tau, a positive number.
    """
    Range(0, is_open=True).check("`clip`", clip)
    split = split_scores(scores, positives, candidates)
    clipped = split.negatives.clamp(-clip, clip).masked_fill(~split.is_negative, -math.inf)
    return Estimate(split.positive, split._replace(negatives=clipped).log_mean_exp_negatives, is_log=True)


def jensen_shannon_nwj(scores: ScoreMatrix, positives: Positives = None, candidates: Candidates = None) -> Estimate:
    """Return NWJ of s + 1, for a critic trained by `jensen_shannon`: section 2.2 of Poole et al. 2019
    (arXiv:1905.06922).

    The optimum of such a critic is log p(y | x) / p(y), while the optimum of NWJ is larger by 1. A **lower bound** for
    any critic; bias and variance are those of NWJ, but the variance during training differs.
    """
    return nwj(scores + 1, positives, candidates)


def goodness_of_fit(scores: ScoreMatrix, positives: Positives = None, candidates: Candidates = None) -> Estimate:
    """Return E[s - log mean of exp s over the row's negatives], which CEBRA calls goodness of fit (there in bits, with
    n = N: `log N - InfoNCE` in `cebra.sklearn.metrics.infonce_to_goodness_of_fit`, and a loss without the positive in
    its denominator; Schneider et al. 2023, doi:10.1038/s41586-023-06031-6).

    Unlike InfoNCE, the sum has no positive, so the estimate has no ceiling and is no bound. It is Donsker-Varadhan row
    by row. Constants of a row cancel.

    **Neither** bound: with infinitely many negatives it is a lower bound for any critic; with n, the log of the sample
    mean is on average too low, so the estimate is too high. For s = log p(y | x) / p(y) + K(x) it is an upper bound.
    Bias: for this s positive and without limit, vanishing for n large against exp(I); for other critics of either sign.
    Variance: moderate, because every exponential is inside a logarithm. It is no training objective (docs/theory.md).
    """
    return _joint_only(-split_scores(scores, positives, candidates).relative.log_mean_exp_negatives)


def anchored_plug_in(scores: ScoreMatrix, positives: Positives = None, candidates: Candidates = None) -> Estimate:
    """Return E[s] over positives, for a critic trained by `anchored_info_nce`: the plug-in estimate of InfoNCE-anchor,
    Ryu et al. 2025 (arXiv:2510.25983).

    **Neither** bound: the estimate is as good as the critic, and follows any constant that is added to the scores.
    Negatives are not read. Bias: none for s = log p(y | x) / p(y), because the information is the mean of this score.
    In expectation it is otherwise the information minus KL(p(x, y) || p~(x, y)), if p~ = p(x) p(y) exp s is normalised,
    and higher by the log of its sum if it is not. Variance: that of s over the pairs, divided by M; it does not grow as
    exp(I).
    """
    return _joint_only(split_scores(scores, positives, candidates).positive)


def leave_one_out(log_conditional: ScoreMatrix) -> Estimate:
    """Return E[log p(y_i | x_i) - log mean over j != i of p(y_i | x_j)]: section 2.5 of Poole et al. 2019
    (arXiv:1905.06922).

    An **upper bound** in expectation: the mean over other x replaces p(y), and by Jensen the expectation of -log of an
    average is at least -log of the expectation. Bias: positive; it vanishes if N is large against exp(I), and is
    otherwise unlimited. Variance: moderate, because every exponential is inside a logarithm. A learned critic is not a
    conditional density: it has an unknown constant in each row, and these constants would change the estimate.

    Args:
        log_conditional: log p(y_j | x_i) with rows x_i, a square matrix of at least two pairs. Any function of only y_j
            may be added, so log p(y | x) / p(y) is valid too.
    """
    check_tensor("log_conditional", log_conditional, "floats", ("N", len(log_conditional)))
    split = split_scores(rearrange(log_conditional, "x y -> y x"))
    return _joint_only(-split.relative.log_mean_exp_negatives)


def moving_average_gradient(decay: int | float = DEFAULT_DECAY) -> Callable[[ScoreMatrix], Float[Tensor, ""]]:
    """Return the objective of MINE: Donsker-Varadhan, with a gradient corrected by a moving average of E[exp s].

    The gradient of the log of a minibatch mean is biased, because it is divided by the minibatch mean. Division by a
    moving average instead is from section 3.2 of Belghazi et al. 2018 (arXiv:1801.04062). Each call takes one matrix
    with positives on the diagonal, returns its estimate, and updates the average. `decay` of the average lies in
    [0, 1); 0 gives the uncorrected gradient.
    """
    Range(0, 1, is_below=True).check("`decay`", decay)
    log_average: Tensor | None = None

    def objective(scores: ScoreMatrix) -> Float[Tensor, ""]:
        nonlocal log_average
        estimate = donsker_varadhan(scores)
        log_mean = log_mean_exp(estimate.log_marginal)
        current = log_mean.detach()
        if log_average is None or decay == 0:
            log_average = current
        else:
            log_average = torch.logaddexp(math.log(decay) + log_average, math.log1p(-decay) + current)
        surrogate = estimate.joint_nats.mean() - (log_mean - log_average).exp()
        return estimate.nats.detach() + surrogate - surrogate.detach()

    return objective


@dataclass(frozen=True)
class Estimator:
    """An estimator of information from a score matrix, with its properties."""

    estimate: Callable[..., Estimate]  # function from scores (and `log_baseline`, if needed) to an `Estimate`
    # `lower` or `upper` if the expected estimate is a bound for any critic and number of candidates.
    side: Literal["lower", "upper", "neither"]
    needs_baseline: bool = False  # whether `estimate` takes `log_baseline`, the log of a positive function of the row
    # Whether `estimate` takes log p(y | x), which is known only for tasks with known information.
    needs_conditional: bool = False
    best_offset: float = 0.0  # offset of the best scores from log p(y | x) / p(y)
    # Function that makes the training objective, if the objective differs from the estimate. Estimators with the same
    # objective can use the same critic.
    objective: Callable[[], Callable[[Tensor], Tensor]] | None = None


_JENSEN_SHANNON = Estimator(jensen_shannon_nwj, "lower", objective=lambda: jensen_shannon)
ESTIMATORS: dict[str, Estimator] = {
    "info_nce": Estimator(info_nce, "lower"),
    "nwj": Estimator(nwj, "lower", best_offset=1.0),
    "tuba": Estimator(tuba, "lower", needs_baseline=True),
    "interpolated": Estimator(interpolated, "lower", needs_baseline=True),
    "dv": Estimator(donsker_varadhan, "neither"),
    "mine": Estimator(donsker_varadhan, "neither", objective=moving_average_gradient),
    "js": _JENSEN_SHANNON,
    "smile": Estimator(smile, "neither", objective=_JENSEN_SHANNON.objective),
    "anchor": Estimator(anchored_plug_in, "neither", objective=lambda: anchored_info_nce),
    "goodness_of_fit": Estimator(goodness_of_fit, "neither"),
    "leave_one_out": Estimator(leave_one_out, "upper", needs_conditional=True),
}


def _joint_only(joint_nats: Tensor) -> Estimate:
    return Estimate(joint_nats, torch.full_like(joint_nats, -math.inf), is_log=False)
