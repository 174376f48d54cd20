"""Sampling with replacement from unnormalised weights.

K weights, R samples per row.
"""

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

CHUNK = 512


def inverse_cdf(weights: Float[Tensor, "*M K"], uniform: Float[Tensor, "*M R"]) -> Int[Tensor, "*M R"]:
    """Return the indices at which uniform numbers, in [0, 1), fall in the cumulative weights; 0 is never sampled.

    No weight is negative, and their sum is positive. Sums are in float64, and `uniform` should be too: in float32 a low
    probability, below 6e-8, would be sampled never or far too often.
    """
    cumulated = weights.cumsum(-1, dtype=torch.float64)
    total = cumulated[..., -1:]
    below = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulated, below, right=True)


def chunked_inverse_cdf(weights: Float[Tensor, "M K"], uniform: Float[Tensor, "two M R"]) -> Int[Tensor, "M R"]:
    """Return samples as `inverse_cdf` does, faster for large K and few samples.

    The function first samples a chunk in proportion to its sum, then a weight within the chunk. Sums of chunks take one
    pass over the weights; cumulative sums of all weights in float64 take several passes.
    """
    if 8 * CHUNK * uniform.shape[2] > weights.shape[1]:
        return inverse_cdf(weights, uniform[0])
    chunks = rearrange(F.pad(weights, (0, -weights.shape[1] % CHUNK)), "m (c k) -> m c k", k=CHUNK)
    chunk = inverse_cdf(chunks.sum(-1), uniform[0])  # [M, R]
    chunk_weights = chunks.take_along_dim(rearrange(chunk, "m r -> m r 1"), dim=1)  # [M, R, CHUNK]
    index = inverse_cdf(chunk_weights, rearrange(uniform[1], "m r -> m r 1"))
    return chunk * CHUNK + rearrange(index, "m r 1 -> m r")
