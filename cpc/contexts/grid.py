"""Grids of patches as sequences: a column is a sequence, its rows are time steps. Time has four directions.

Sequences have the directions `forward` and `backward`, or a single one without a name.

B images, H rows and W columns of patches, T rows and S columns in a direction of time, D latent dim.
"""

from collections.abc import Iterable
from typing import Literal, get_args

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor

Direction = Literal["down", "up", "right", "left"]
DIRECTIONS: tuple[str, ...] = get_args(Direction)


def orient(grid: Num[Tensor, "B H W D"], direction: str) -> Num[Tensor, "B T S D"]:
    """Turn a grid so that time runs along axis 1: `right` transposes the grid, `up` reverses the rows."""
    if direction in ("right", "left"):
        grid = rearrange(grid, "b h w d -> b w h d")
    return grid.flip(1) if direction in ("up", "left") else grid


def restore(grid: Float[Tensor, "B T S D"], direction: str) -> Float[Tensor, "B H W D"]:
    """Turn a grid back: the inverse of `orient`."""
    if direction in ("up", "left"):
        grid = grid.flip(1)
    return rearrange(grid, "b w h d -> b h w d") if direction in ("right", "left") else grid


def columns(latents: Num[Tensor, "B ... D"], direction: str) -> Num[Tensor, "S T D"]:
    """Return the columns of grids as sequences, image by image, or sequences in a direction of time."""
    if direction in DIRECTIONS:
        return rearrange(orient(latents, direction), "b t s d -> (b s) t d")
    return latents.flip(1) if direction == "backward" else latents


def is_on_grid(directions: Iterable[str]) -> bool:
    """Return whether directions of time are those of grids."""
    return not set(DIRECTIONS).isdisjoint(directions)


def is_grid(latents: Float[Tensor, "B ... D"]) -> bool:
    """Return whether latents are grids `[B, H, W, D]` instead of sequences `[B, T, D]`."""
    return latents.ndim == 4


def is_signal(
    latents: Float[Tensor, "B ... D"],
    num_latents: Int[Tensor, " B"] | None,
    is_known: Bool[Tensor, "B T"] | None = None,
) -> Bool[Tensor, "B ..."]:
    """Return the mask of latents that are known and not padding; grids have no padding."""
    mask = torch.ones(latents.shape[:-1], dtype=torch.bool, device=latents.device)
    if is_known is not None:
        mask &= is_known.to(latents.device, non_blocking=True)
    if num_latents is None or is_grid(latents):
        return mask
    num_latents = rearrange(num_latents, "b -> b 1").to(latents.device, non_blocking=True)
    return mask & (torch.arange(latents.shape[1], device=latents.device) < num_latents)
