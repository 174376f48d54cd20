"""What a reading of log N - L says of the truth at this N, in words."""

import math

from cpc.bounds.gaussian import information_at_reading_nats, is_biased

SATURATION_NATS = 0.3


def is_saturated(reading_nats: int | float, ceiling_nats: int | float) -> bool:
    """Whether the reading is within 0.3 nats of the ceiling log N: more candidates would show more."""
    return ceiling_nats - reading_nats < SATURATION_NATS


def advice(reading_nats: int | float, num_candidates: int | float, change: str) -> str:
    """What to make of a bound whose bias exceeds 0.3 nats, and what to change; empty for any other.

    The truth that an exact critic on Gaussians would need (`information_at_reading_nats`): indicative, since data are
    not Gaussian (additive uniform noise of 6 nats reads 0.4 nats more) and a critic is not exact, which hides more.
    Within 0.3 nats of the ceiling a hundredth of a nat in the reading is a nat in the truth: its lower end is named.

    Args:
        reading_nats: log N - L, of candidates for which it is a bound: no other number can be inverted.
        num_candidates: N, the positive included.
        change: the option that raises N.

    Example:
        >>> advice(4.103, 129, "batch_size")
        'at N = 129 a true 6.0 nats reads 4.1 for Gaussians: raise batch_size'
    """
    if not is_biased(reading_nats, num_candidates):
        return ""
    ceiling = math.log(num_candidates)
    if is_saturated(reading_nats, ceiling):
        least = information_at_reading_nats(ceiling - SATURATION_NATS, num_candidates)
        return (
            f"at N = {num_candidates:.0f} the truth may be any {least:.1f} nats or more, for Gaussians: raise {change}"
        )
    information = information_at_reading_nats(reading_nats, num_candidates)
    return (
        f"at N = {num_candidates:.0f} a true {information:.1f} nats reads {reading_nats:.1f} for Gaussians: "
        f"raise {change}"
    )
