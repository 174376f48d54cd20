"""Sampling with replacement from unnormalised weights.

K weights, R samples per row.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def inverse_cdf(weights: Float[Tensor, "*M K"], uniform: Float[Tensor, "*M R"]) -> Int[Tensor, "*M R"]:
    """Return the indices at which uniform numbers, in [0, 1), fall in the cumulative weights; 0 is never sampled.

    No weight is negative, and their sum is positive. Sums are in float64, and `uniform` should be too: in float32 a low
    probability, below 6e-8, would be sampled never or far too often.
    """
    cumulated = weights.cumsum(-1, dtype=torch.float64)
    total = cumulated[..., -1:]
    below = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulated, below, right=True)
