"""g_ar for grids of patches: rows are time, columns are sequences, and time may run in four directions.

B images, H rows and W columns of patches, D latent dim, C context dim, V directions.
"""

import math
from abc import abstractmethod
from typing import Any, Literal, get_args

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from cpc.contexts.context import Context, State

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


def is_grid(latents: Float[Tensor, "B ... D"]) -> bool:
    """Whether latents are grids `[B, H, W, D]`, not sequences `[B, T, D]`."""
    return latents.ndim == 4


def is_signal(latents: Float[Tensor, "B ... D"], num_valid: Int[Tensor, " B"] | None) -> Bool[Tensor, "B ..."]:
    """Which latents are no padding: the first `num_valid` of each sequence; None: all. Grids have no padding."""
    if num_valid is None or is_grid(latents):
        return torch.ones(latents.shape[:-1], dtype=torch.bool, device=latents.device)
    return torch.arange(latents.shape[1], device=latents.device) < rearrange(num_valid, "b -> b 1")


def check_latents(encoder: Any, context: Any) -> None:
    """Refuse a context of sequences for an encoder of grids, and the other way round.

    Raises:
        ValueError: naming both.
    """
    latents = getattr(encoder, "latents", None)  # an encoder of one's own may leave it out, and is believed
    if latents is not None and isinstance(context, GridContext) != (latents == "grids"):
        advice = "PixelCNN or RowGRU" if latents == "grids" else "GRU, for example"
        raise ValueError(
            f"the context is {type(context).__name__}, but the latents of {type(encoder).__name__} are {latents}: "
            f"choose {advice}"
        )


class GridContext(Context):
    """Contexts of a grid, one network of its own for each direction (Henaff et al. 2019, arXiv:1905.09272).

    With direction `down`, c at row r sees every column of the rows up to r and nothing below. Directions other than
    `down` turn the grid; their contexts are turned back and stand side by side in the last axis.

    Args:
        width: width of each direction's contexts.
        directions: where time runs to, of `down`, `up`, `right` and `left`.

    Attributes:
        dim: width of all contexts together.

    Raises:
        ValueError: on unknown or repeated directions, or none.
    """

    def __init__(self, width: int, directions: tuple[str, ...]) -> None:
        super().__init__()
        directions = tuple(directions)
        if not directions or len(set(directions)) < len(directions) or not set(directions) <= set(DIRECTIONS):
            raise ValueError(f"directions={directions!r} must be different ones of {', '.join(DIRECTIONS)}")
        if width < 1:
            raise ValueError(f"width={width} must be at least 1")
        self.width = width
        self.directions = directions
        self.dim = width * len(directions)

    def forward(self, z: Float[Tensor, "B H W D"], state: State = None) -> tuple[Float[Tensor, "B H W C"], State]:
        """Encode the latents of whole images; there is no state, since an image does not come in pieces.

        Raises:
            ValueError: before `connect`, on latents of another width or of no grid, or with a state.
        """
        self._check_width(z)
        if not is_grid(z):
            raise ValueError(f"{type(self).__name__} takes latents [B, H, W, D], got {tuple(z.shape)}")
        if state is not None:
            raise ValueError(f"{type(self).__name__} encodes whole images and goes on from no state: leave state out")
        contexts = [
            restore(network(orient(z, direction)), direction)
            for direction, network in zip(self.directions, self.networks, strict=True)
        ]
        return torch.cat(contexts, -1), None

    def by_direction(self, contexts: Float[Tensor, "B H W C"]) -> dict[str, Float[Tensor, "S T c"]]:
        """The columns of each direction's own contexts."""
        of_directions = rearrange(contexts, "b h w (v c) -> v b h w c", v=len(self.directions))
        return {direction: columns(c, direction) for direction, c in zip(self.directions, of_directions, strict=True)}

    def sequences(self, num_latents: int) -> tuple[int, int]:
        """The columns of a square grid."""
        side = math.isqrt(num_latents)
        return side, side

    def _allocate(self, input_dim: int) -> None:
        self.networks = nn.ModuleList(self._network(input_dim) for _ in self.directions)

    @abstractmethod
    def _network(self, input_dim: int) -> nn.Module:
        """`[B, T, S, D] -> [B, T, S, C]`; row t of the result depends on the rows up to t alone."""

    def _encode(self, z: Tensor, state: State) -> tuple[Tensor, State]:
        raise NotImplementedError("grids are encoded by forward")
