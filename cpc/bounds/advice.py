"""What a reading of log N - L says of the truth at this N, in words."""

import math

from cpc.bounds.gaussian import information_at_reading_nats, is_biased, optimal_reading_nats

SATURATION_NATS = 0.3


def is_saturated(reading_nats: int | float, ceiling_nats: int | float) -> bool:
    """Whether the reading is within 0.3 nats of the ceiling log N: more candidates would show more."""
    return ceiling_nats - reading_nats < SATURATION_NATS


def advice(reading_nats: int | float, num_candidates: int | float) -> str:
    """What to make of a reading whose bias exceeds 0.3 nats, and what to change; empty for any other.

    The truth that an exact critic on Gaussians would need (`information_at_reading_nats`): indicative, since data are
    not Gaussian and a critic is not exact, which hides more.

    Args:
        reading_nats: log N - L.
        num_candidates: N, the positive included.

    Example:
        >>> advice(4.103, 129)
        'at N = 129 a true 6.0 nats reads 4.1 at best: raise the batch or add a queue'
    """
    if not is_biased(reading_nats, num_candidates):
        return ""
    information = information_at_reading_nats(reading_nats, num_candidates)
    change = "raise the batch or add a queue"
    if math.isinf(information):
        return f"at N = {num_candidates:.0f} nothing reads above {math.log(num_candidates):.1f}: {change}"
    best = optimal_reading_nats(information, num_candidates)
    return f"at N = {num_candidates:.0f} a true {information:.1f} nats reads {best:.1f} at best: {change}"
