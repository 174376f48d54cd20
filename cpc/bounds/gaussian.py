"""What N candidates can show at best, by the reading of the exact critic on Gaussians of many dimensions; advice.

There the exact scores s = log p(z | c) / p(z) of a pair with information I are normal themselves, with variance 2 I:
around I for the positive, around -I for a negative.
"""

import math

import numpy as np
from scipy.optimize import brentq

BIAS_NATS = 0.3
SATURATION_NATS = 0.3
INDISTINCT_NATS = 0.02
MOST_NATS = 60.0  # reads within INDISTINCT_NATS of any ceiling below it
_DEVIATIONS = 8.0  # of the normal scores, where quadrature ends


def optimal_reading_nats(information_nats: int | float, num_candidates: int | float) -> float:
    """The exact critic's log N - E[L], by E[log X] = int_0^inf (exp(-t) - E[exp(-t X)]) / t dt for X = sum_i exp s_i.

    The candidates are independent, so E[exp(-t X)] is a product of one-dimensional means. With u = log t all integrands
    are smooth and vanish at their ends, where the trapezoidal rule errs by about 1e-4 nats at most.

    Args:
        information_nats: I, not negative.
        num_candidates: N, the positive included, at least 1.
    """
    deviation = math.sqrt(2 * information_nats)
    z = np.linspace(-_DEVIATIONS, _DEVIATIONS, 101)
    weights = np.exp(-z * z / 2)
    weights /= weights.sum()
    reach = _DEVIATIONS * deviation
    u = np.arange(-information_nats - reach - math.log(num_candidates) - 10, reach - information_nats + 6, 0.2)
    # E[exp(-exp(u + s))]; exp(-exp(6)) is as good as 0, and no denormal
    of_positive, of_negative = (
        np.exp(-np.exp(np.minimum(u[:, None] + mean + deviation * z, 6.0))) @ weights
        for mean in (information_nats, -information_nats)
    )
    of_sum = of_positive * of_negative ** (num_candidates - 1)
    expected_log_sum = np.trapezoid(np.exp(-np.exp(u)) - of_sum, u)
    return math.log(num_candidates) + information_nats - float(expected_log_sum)


def is_biased(reading_nats: float, num_candidates: int | float) -> bool:
    """Whether the information at which this reading would be optimal exceeds it by more than 0.3 nats.

    The optimum grows with the information, so it is enough to ask what it is 0.3 nats above the reading. Indicative:
    data are not Gaussian, and a critic is not exact.
    """
    return reading_nats > 0 and optimal_reading_nats(reading_nats + BIAS_NATS, num_candidates) < reading_nats


def information_at_reading_nats(reading_nats: int | float, num_candidates: int | float) -> float:
    """The information that would read like this at best: the inverse of `optimal_reading_nats`.

    Infinite within 0.02 nats of the ceiling, where readings no longer tell informations apart; 0 for a reading of 0
    or less; NaN for NaN.

    Args:
        reading_nats: log N - L.
        num_candidates: N, the positive included, at least 2.
    """
    if math.isnan(reading_nats):
        return math.nan
    if reading_nats <= 0:
        return 0.0
    if reading_nats > math.log(num_candidates) - INDISTINCT_NATS:
        return math.inf

    def excess(information_nats: float) -> float:
        return optimal_reading_nats(information_nats, num_candidates) - reading_nats

    # the optimum exceeds the information by quadrature's error at most, for which the lower end allows
    low = max(reading_nats - 1e-3, 0.0)
    if excess(low) >= 0:  # a reading of less than that error
        return low
    return float(brentq(excess, low, MOST_NATS, xtol=1e-3))


def is_saturated(reading_nats: int | float, ceiling_nats: int | float) -> bool:
    """Whether the reading is within 0.3 nats of the ceiling log N: more candidates would show more."""
    return ceiling_nats - reading_nats < SATURATION_NATS


def advice(reading_nats: int | float, num_candidates: int | float, change: str) -> str:
    """What to make of a bound whose bias exceeds 0.3 nats, and what to change; empty for any other.

    Indicative: data are not Gaussian (additive uniform noise of 6 nats reads 0.4 nats more), and a critic is not exact,
    which hides more. Within 0.3 nats of the ceiling a hundredth of a nat in the reading is a nat in the truth: there
    the lower end is given.

    Args:
        reading_nats: log N - L, where it is a bound: no other number can be inverted.
        num_candidates: N, the positive included.
        change: the option that raises N.

    Example:
        >>> advice(4.103, 129, "batch_size")
        'at N = 129 a true 6.0 nats reads 4.1 for Gaussians: raise batch_size'
    """
    if not is_biased(reading_nats, num_candidates):
        return ""
    ceiling, n = math.log(num_candidates), f"at N = {num_candidates:.0f}"
    if is_saturated(reading_nats, ceiling):
        least = information_at_reading_nats(ceiling - SATURATION_NATS, num_candidates)
        return f"{n} the truth may be any {least:.1f} nats or more, for Gaussians: raise {change}"
    information = information_at_reading_nats(reading_nats, num_candidates)
    return f"{n} a true {information:.1f} nats reads {reading_nats:.1f} for Gaussians: raise {change}"
