"""Draws with replacement from unnormalised weights.

K weights, R draws of each row.
"""

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

CHUNK = 512


def inverse_cdf(weights: Float[Tensor, "*M K"], uniform: Float[Tensor, "*M R"]) -> Int[Tensor, "*M R"]:
    """The places at which uniform numbers fall in the cumulated weights, never one of weight zero.

    The sums are in float64, and so should be the numbers: in float32 a class of probability below 6e-8 would come
    never, or far too often.

    Args:
        weights: not negative, with a positive sum.
        uniform: in [0, 1).
    """
    cumulated = weights.cumsum(-1, dtype=torch.float64)
    total = cumulated[..., -1:]
    below = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulated, below, right=True)


def inverse_cdf_of_many(weights: Float[Tensor, "M K"], uniform: Float[Tensor, "two M R"]) -> Int[Tensor, "M R"]:
    """The same for large K and few draws, in two stages: a chunk of weights by its sum, then one of the chunk.

    Sums of chunks cost a pass over the weights; cumulating all of them costs several and the memory of float64.
    """
    if 8 * CHUNK * uniform.shape[2] > weights.shape[1]:
        return inverse_cdf(weights, uniform[0])
    chunks = rearrange(F.pad(weights, (0, -weights.shape[1] % CHUNK)), "m (c k) -> m c k", k=CHUNK)
    chunk = inverse_cdf(chunks.sum(-1), uniform[0])  # [M, R]
    chunk_draws = chunks.take_along_dim(rearrange(chunk, "m r -> m r 1"), dim=1)  # [M, R, CHUNK]
    place = inverse_cdf(chunk_draws, rearrange(uniform[1], "m r -> m r 1"))
    return chunk * CHUNK + rearrange(place, "m r 1 -> m r")
