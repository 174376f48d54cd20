"""g_ar for grids: masked convolutions, in the manner of PixelCNN (van den Oord et al. 2016, arXiv:1606.05328).

B images, H rows and W columns of patches, T rows and S columns in a direction of time, D latent dim, C context dim, V
directions.
"""

import math

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from cpc.contexts.context import Context, State
from cpc.contexts.grid import DIRECTIONS, columns, orient, restore


class PixelCNN(Context):
    """Residual blocks that look at neighbouring columns, and at the row before; one network for each direction of time.

    With direction `down`, c at row r sees every column of the rows up to r and nothing below. Other directions turn the
    grid (Henaff et al. 2019, arXiv:1905.09272); their contexts are turned back and stand side by side in the last axis.

    Since whole rows are predicted, a context may see its own row on both sides, unlike PixelCNN's pixels; the mask is
    between rows alone. After n blocks it sees n rows up and n columns to either side. What lies outside the grid counts
    as zero. The block 1x1, 1x3, 2x1, 1x1 is that of public CPC v2 implementations; the paper draws no more of it than
    its name.

    Args:
        width: width of each direction's contexts.
        num_blocks: residual blocks; with as many as the grid has rows, contexts see all rows before.
        hidden_dim: width within a block.
        directions: where time runs to, of `down`, `up`, `right` and `left`.

    Attributes:
        dim: width of all contexts together.

    Raises:
        ValueError: if a number is below 1; on unknown or repeated directions, or none.
    """

    latents = "grids"

    def __init__(
        self,
        width: int = 256,
        num_blocks: int = 5,
        hidden_dim: int = 256,
        directions: tuple[str, ...] = ("down",),
    ) -> None:
        super().__init__()
        directions = tuple(directions)
        if not directions or len(set(directions)) < len(directions) or not set(directions) <= set(DIRECTIONS):
            raise ValueError(f"directions={directions!r} must be different ones of {', '.join(DIRECTIONS)}")
        if min(width, num_blocks, hidden_dim) < 1:
            raise ValueError(
                f"width={width}, num_blocks={num_blocks} and hidden_dim={hidden_dim} must each be at least 1"
            )
        self.width = width
        self.num_blocks = num_blocks
        self.hidden_dim = hidden_dim
        self.directions = directions
        self.dim = width * len(directions)

    def split_directions(self, contexts: Float[Tensor, "B H W C"]) -> dict[str, Float[Tensor, "S T c"]]:
        """The columns of each direction's own contexts."""
        of_directions = rearrange(contexts, "b h w (v c) -> v b h w c", v=len(self.directions))
        return {direction: columns(c, direction) for direction, c in zip(self.directions, of_directions, strict=True)}

    def sequences(self, num_latents: int) -> tuple[int, int]:
        """The columns of a square grid."""
        side = math.isqrt(num_latents)
        return side, side

    def _allocate(self, input_dim: int) -> None:
        self.networks = nn.ModuleList()
        for _ in self.directions:
            projection = nn.Identity() if input_dim == self.width else nn.Linear(input_dim, self.width)
            blocks = (MaskedBlock(self.width, self.hidden_dim) for _ in range(self.num_blocks))
            self.networks.append(nn.Sequential(projection, *blocks))

    def _encode(self, z: Float[Tensor, "B H W D"], state: State) -> tuple[Float[Tensor, "B H W C"], State]:
        if state is not None:
            raise ValueError(f"{type(self).__name__} encodes whole images, which have no state: leave state out")
        contexts = [
            restore(network(orient(z, direction)), direction)
            for direction, network in zip(self.directions, self.networks, strict=True)
        ]
        return torch.cat(contexts, -1), None


class MaskedBlock(nn.Module):
    """x + W (2x1 of rows t-1 and t)(1x3 of columns)(1x1), on `[B, T, S, C]`."""

    def __init__(self, width: int, hidden_dim: int) -> None:
        super().__init__()
        self.narrow = nn.Linear(width, hidden_dim)
        self.beside = nn.Conv2d(hidden_dim, hidden_dim, (1, 3), padding=(0, 1))
        self.before = nn.Conv2d(hidden_dim, hidden_dim, (2, 1))
        self.widen = nn.Linear(hidden_dim, width)

    def forward(self, x: Float[Tensor, "B T S C"]) -> Float[Tensor, "B T S C"]:
        """One block; the row of zeros above the first is what makes row t see t-1 and t, never t+1."""
        hidden = rearrange(self.narrow(x.relu()).relu(), "b t s c -> b c t s")
        hidden = self.before(F.pad(self.beside(hidden), (0, 0, 1, 0))).relu()
        return x + self.widen(rearrange(hidden, "b c t s -> b t s c"))
