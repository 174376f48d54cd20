"""Grids of patches as sequences: rows are time, columns are sequences, and time may run in four directions.

B images, H rows and W columns of patches, T rows and S columns in a direction of time, D latent dim.
"""

from typing import Literal, get_args

from einops import rearrange
from jaxtyping import Float
from torch import Tensor

Direction = Literal["down", "up", "right", "left"]
DIRECTIONS: tuple[str, ...] = get_args(Direction)


def orient(grid: Float[Tensor, "B H W D"], direction: str) -> Float[Tensor, "B T S D"]:
    """Turn a grid so that its rows follow each other as time runs: `right` makes rows of columns, `up` begins below."""
    if direction in ("right", "left"):
        grid = rearrange(grid, "b h w d -> b w h d")
    return grid.flip(1) if direction in ("up", "left") else grid


def restore(grid: Float[Tensor, "B T S D"], direction: str) -> Float[Tensor, "B H W D"]:
    """Undo `orient`."""
    if direction in ("up", "left"):
        grid = grid.flip(1)
    return rearrange(grid, "b w h d -> b h w d") if direction in ("right", "left") else grid


def columns(latents: Float[Tensor, "B ... D"], direction: str) -> Float[Tensor, "S T D"]:
    """A grid's columns as sequences, an image's next to each other; without a direction, sequences as they are."""
    return rearrange(orient(latents, direction), "b t s d -> (b s) t d") if direction else latents
