"""The rows of a loss: the sequences, times and steps that have a query and its positive.

K steps, B sequences, T latents.
"""

import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool
from torch import Tensor


def rows_mask(is_valid: Bool[Tensor, "B T"], num_steps: int, skip_steps: int = 0) -> Bool[Tensor, "B T K"]:
    """Return the sequences, times and steps that have a row: z_t and z_{t+k} are both valid."""
    first = skip_steps + 1
    ahead = F.pad(is_valid, (0, skip_steps + num_steps)).unfold(1, num_steps, 1)[:, first:]
    return rearrange(is_valid, "b t -> b t 1") & ahead


def rows_of(has_row: Bool[Tensor, "B T K"], skip_steps: int = 0) -> tuple[Tensor, ...]:
    """Return, for each row, the index of its query (b t k), its step, its sequence and the index of its target (b t).

    The rows are in the order in which a bilinear predictor returns its queries.
    """
    _, num_latents, num_steps = has_row.shape
    query_index = has_row.flatten().nonzero()[:, 0]
    position, step = query_index // num_steps, query_index % num_steps
    return query_index, step, position // num_latents, position + skip_steps + 1 + step
