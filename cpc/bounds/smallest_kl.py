"""The smallest KL divergence that a Jensen-Shannon divergence allows."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from cpc.losses.engine import softplus

_NEWTON_STEPS = 12
_SMALL_LOG = -37.0  # softplus(x) = exp(x) to the last digit of float64 for smaller x


def smallest_kl(minus_log_deficit: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return the smallest KL(P || Q) in nats among all P and Q with JS(P, Q) = log 2 - d.

    Derivation. Let t = dP/dQ. KL and JS are means over Q of t log t and of j(t) = (t log t - (1 + t) log((1 + t) / 2))
    / 2, and the mean of t is 1. On the lower edge of all pairs (JS, KL), t minimises the mean of t log t - l j(t) for
    some l > 0, that is, it lies on the convex envelope of this function at t = 1. Its second derivative is (1 - l / (2
    + 2 t)) / t, negative up to t = l / 2 - 1 and positive above. So the envelope is a chord from t = 0 to a tangent
    point, and t has only these two values: P = (1, 0) and Q = (q, 1 - q). Hence

        KL = -log q,     d = log 2 - JS = ((1 + q) log(1 + q) - q log q) / 2.

    The slope dKL / dJS = 2 / (q log(1 + 1 / q)) grows from 2 / log 2 at JS = 0 to infinity at JS = log 2. If d > log 2
    (a negative estimate of JS), the result is the tangent at JS = 0, which is negative. The argument is -log d, because
    the logarithm keeps all digits where JS is near log 2.
    """
    target = minus_log_deficit.double()

    def logs(kl: Tensor) -> tuple[Tensor, Tensor]:
        """Return -log d and its derivative."""
        q = (-kl).exp().clamp(min=1e-300)
        bracket = (1 + q) * q.log1p() / q + kl  # 2 d / q
        return math.log(2) + kl - bracket.log(), softplus(kl) / bracket

    target_at_zero = -math.log(math.log(2))
    above = target.clamp(min=target_at_zero)
    with torch.no_grad():
        kl = above.detach() + above.detach().clamp(min=1).log()
        for _ in range(_NEWTON_STEPS):
            value, slope = logs(kl)
            kl = (kl - (value - above) / slope).clamp(min=0)
        value, slope = logs(kl)
    kl = kl - (value - above) / slope  # the last step has the gradient of the inverse
    line = 2 * (math.log(2) - (-target).exp()) / math.log(2)
    return torch.where(target < target_at_zero, line, kl).to(minus_log_deficit.dtype)


def log_softplus(values: Tensor) -> Tensor:
    """Return log softplus(values), which is close to `values` itself where exp(values) is small."""
    is_small = values < _SMALL_LOG
    safe = values.masked_fill(is_small, 0.0)
    return torch.where(is_small, values, softplus(safe).log())
