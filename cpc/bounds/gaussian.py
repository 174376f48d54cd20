"""The expected bound log N - L of the exact critic on Gaussians of many dimensions, its inverse, and advice.

In this case the exact scores s = log p(z | c) / p(z) are normal with variance 2 I, if I is the information. Their mean
is I for the positive, and -I for a negative.
"""

import math

import numpy as np
from scipy.optimize import brentq

BIAS_NATS = 0.3
SATURATION_NATS = 0.3
INDISTINCT_NATS = 0.02
MAX_NATS = 60.0  # at this information the bound is within INDISTINCT_NATS of any ceiling below it
_DEVIATIONS = 8.0  # limit of the quadrature in standard deviations of the scores


def optimal_bound_nats(information_nats: int | float, num_candidates: int | float) -> float:
    """Return log N - E[L] of the exact critic.

    E[log X] = int_0^inf (exp(-t) - E[exp(-t X)]) / t dt for X = sum_i exp s_i. The candidates are independent, so
    E[exp(-t X)] is a product of one-dimensional means. With u = log t all integrands are smooth and vanish at both
    ends, so the error of the trapezoidal rule is at most about 1e-4 nats. N includes the positive.
    """
    deviation = math.sqrt(2 * information_nats)
    z = np.linspace(-_DEVIATIONS, _DEVIATIONS, 101)
    weights = np.exp(-z * z / 2)
    weights /= weights.sum()
    reach = _DEVIATIONS * deviation
    u = np.arange(-information_nats - reach - math.log(num_candidates) - 10, reach - information_nats + 6, 0.2)
    # E[exp(-exp(u + s))]; the limit 6 avoids denormal numbers, exp(-exp(6)) is practically 0
    positive_mean, negative_mean = (
        np.exp(-np.exp(np.minimum(u[:, None] + mean + deviation * z, 6.0))) @ weights
        for mean in (information_nats, -information_nats)
    )
    product = positive_mean * negative_mean ** (num_candidates - 1)
    expected_log_sum = np.trapezoid(np.exp(-np.exp(u)) - product, u)
    return math.log(num_candidates) + information_nats - float(expected_log_sum)


def is_biased(bound_nats: float, num_candidates: int | float) -> bool:
    """Return whether the information at which the exact critic has this bound exceeds the bound by 0.3 nats.

    The optimum grows with the information, so one evaluation 0.3 nats above the bound is enough. The result is only
    indicative: data are not Gaussian, and a critic is not exact.
    """
    return bound_nats > 0 and optimal_bound_nats(bound_nats + BIAS_NATS, num_candidates) < bound_nats


def information_at_bound_nats(bound_nats: int | float, num_candidates: int | float) -> float:
    """Return the information at which the exact critic has this bound: the inverse of `optimal_bound_nats`.

    Within 0.02 nats of the ceiling the result is infinite, because there bounds no longer distinguish informations. It
    is 0 for a bound of 0 or less, and NaN for NaN. N includes the positive.
    """
    if math.isnan(bound_nats):
        return math.nan
    if bound_nats <= 0:
        return 0.0
    if bound_nats > math.log(num_candidates) - INDISTINCT_NATS:
        return math.inf

    def excess(information_nats: float) -> float:
        return optimal_bound_nats(information_nats, num_candidates) - bound_nats

    # The optimum exceeds the information only by the error of the quadrature. The lower limit of the search allows for
    # this error.
    low = max(bound_nats - 1e-3, 0.0)
    if excess(low) >= 0:  # the bound is below the error
        return low
    return float(brentq(excess, low, MAX_NATS, xtol=1e-3))


def is_saturated(bound_nats: int | float, ceiling_nats: int | float) -> bool:
    """Return whether the bound is within 0.3 nats of the ceiling log N, so more candidates could raise it."""
    return ceiling_nats - bound_nats < SATURATION_NATS


def advice(bound_nats: int | float, num_candidates: int | float, change: str) -> str:
    """Return advice if the bias of a bound exceeds 0.3 nats, otherwise an empty text.

    The advice is only indicative: data are not Gaussian (with additive uniform noise of 6 nats the bound is 0.4 nats
    higher), and a critic that is not exact adds to the bias. Within 0.3 nats of the ceiling an error of 0.01 nats of
    the bound means 1 nat of information, so the advice gives only a lower limit. `change` is the option that raises N.

    Example:
        >>> advice(4.103, 129, "batch_size")
        'at N = 129 a true 6.0 nats reads 4.1 for Gaussians: raise batch_size'
    """
    if not is_biased(bound_nats, num_candidates):
        return ""
    ceiling, n = math.log(num_candidates), f"at N = {num_candidates:.0f}"
    if is_saturated(bound_nats, ceiling):
        least = information_at_bound_nats(ceiling - SATURATION_NATS, num_candidates)
        return f"{n} the truth may be any {least:.1f} nats or more, for Gaussians: raise {change}"
    information = information_at_bound_nats(bound_nats, num_candidates)
    return f"{n} a true {information:.1f} nats reads {bound_nats:.1f} for Gaussians: raise {change}"
