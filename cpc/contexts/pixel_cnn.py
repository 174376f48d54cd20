"""The context network g_ar for grids: masked convolutions as in PixelCNN (van den Oord et al. 2016, arXiv:1606.05328).

B images, H rows and W columns of patches, D latent dim, C context dim, V directions. In a direction of time a grid has
T rows (steps) and S columns.
"""

import math

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from cpc.config.argument_rules import Count, checked
from cpc.contexts.context import Context, State
from cpc.contexts.grid import DIRECTIONS, Direction, columns, orient, restore


class PixelCNN(Context):
    """Residual blocks that read neighbouring columns and the previous row; one network for each direction of time.

    With direction `down`, the context at row r depends only on rows up to r. For other directions
    the grid is turned (Henaff et al. 2019, arXiv:1905.09272), and the contexts are turned back and concatenated in the
    last axis.

    Whole rows are predicted, so a context may depend on all columns of its own row, unlike a pixel in PixelCNN. The
    mask hides only later rows. After n blocks a context depends on n rows above and n columns on each side. The grid is
    padded with zeros. Public implementations of CPC v2 use the block 1x1, 1x3, 2x1, 1x1; the paper gives only its name.

    Args:
        width: width of the contexts of each direction.
        num_blocks: residual blocks; with as many blocks as rows, contexts depend on all previous rows.
        hidden_dim: width within a block.
        directions: directions of time among `down`, `up`, `right` and `left`.

    Attributes:
        dim: width of the concatenated contexts.
    """

    latents = "grids"

    @checked
    def __init__(
        self,
        width: Count = 256,
        num_blocks: Count = 5,
        hidden_dim: Count = 256,
        directions: tuple[Direction, ...] = ("down",),
    ) -> None:
        super().__init__()
        directions = tuple(directions)
        if not directions or len(set(directions)) < len(directions):
            raise ValueError(f"directions={directions!r} must be one or more of {', '.join(DIRECTIONS)}, each once")
        self.width = width
        self.num_blocks = num_blocks
        self.hidden_dim = hidden_dim
        self.directions = directions
        self.dim = width * len(directions)

    def split_directions(self, contexts: Float[Tensor, "B H W C"]) -> dict[str, Float[Tensor, "S T c"]]:
        """Return, for each direction, the columns of its contexts as sequences."""
        direction_contexts = rearrange(contexts, "b h w (v c) -> v b h w c", v=len(self.directions))
        return {
            direction: columns(c, direction) for direction, c in zip(self.directions, direction_contexts, strict=True)
        }

    def sequences(self, num_latents: int) -> tuple[int, int]:
        """Return the number and the length of the columns of a square grid with `num_latents` latents."""
        side = math.isqrt(num_latents)
        return side, side

    def _allocate(self, input_dim: int) -> None:
        self.networks = nn.ModuleList()
        for _ in self.directions:
            projection = nn.Identity() if input_dim == self.width else nn.Linear(input_dim, self.width)
            blocks = (MaskedBlock(self.width, self.hidden_dim) for _ in range(self.num_blocks))
            self.networks.append(nn.Sequential(projection, *blocks))

    def _encode(self, z: Float[Tensor, "B H W D"], state: State) -> tuple[Float[Tensor, "B H W C"], State]:
        contexts = [
            restore(network(orient(z, direction)), direction)
            for direction, network in zip(self.directions, self.networks, strict=True)
        ]
        return torch.cat(contexts, -1), None


class MaskedBlock(nn.Module):
    """A residual block on `[B, T, S, C]`: 1x1, 1x3 over columns, 2x1 over rows t-1 and t, and 1x1 convolutions."""

    def __init__(self, width: int, hidden_dim: int) -> None:
        super().__init__()
        self.narrow = nn.Linear(width, hidden_dim)
        self.beside = nn.Conv2d(hidden_dim, hidden_dim, (1, 3), padding=(0, 1))
        self.before = nn.Conv2d(hidden_dim, hidden_dim, (2, 1))
        self.widen = nn.Linear(hidden_dim, width)

    def forward(self, x: Float[Tensor, "B T S C"]) -> Float[Tensor, "B T S C"]:
        """Return the output of the block. Row t depends only on rows t-1 and t; the first row follows zeros."""
        hidden = rearrange(self.narrow(x.relu()).relu(), "b t s c -> b c t s")
        hidden = self.before(F.pad(self.beside(hidden), (0, 0, 1, 0))).relu()
        return x + self.widen(rearrange(hidden, "b c t s -> b t s c"))
