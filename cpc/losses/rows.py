"""The rows of a loss: the sequences, times and steps that have a query and its positive.

K steps, B sequences, T latents.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Int
from torch import Tensor


def positions_ahead(num_latents: int, steps: Sequence[int]) -> Int[Tensor, "T K"]:
    """Return t + k for every t < `num_latents` and every step k."""
    return rearrange(torch.arange(num_latents), "t -> t 1") + torch.tensor(steps)


def rows_mask(is_valid: Bool[Tensor, "B T"], steps: Sequence[int]) -> Bool[Tensor, "B T K"]:
    """Return the sequences, times and steps k that have a row: z_t and z_{t+k} are both valid."""
    ahead = F.pad(is_valid, (0, max(steps)))[:, positions_ahead(is_valid.shape[1], steps)]
    return rearrange(is_valid, "b t -> b t 1") & ahead


def rows_of(has_row: Bool[Tensor, "B T K"], steps: Sequence[int]) -> tuple[Tensor, ...]:
    """Return, for each row, the index of its query (b t k), of its step, of its sequence and of its target (b t).

    The rows are in the order in which a bilinear predictor returns its queries.
    """
    _, num_latents, num_steps = has_row.shape
    query_index = has_row.flatten().nonzero()[:, 0]
    position, step = query_index // num_steps, query_index % num_steps
    return query_index, step, position // num_latents, position + torch.tensor(steps)[step]
