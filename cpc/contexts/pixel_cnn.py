"""Masked convolutions over a grid of patches, in the manner of PixelCNN (van den Oord et al. 2016, arXiv:1606.05328).

B images, T rows, S columns, C context dim.
"""

import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from cpc.contexts.grid import GridContext


class PixelCNN(GridContext):
    """Residual blocks that look at neighbouring columns, and at the row before.

    Since whole rows are predicted, a context may see its own row on both sides, unlike PixelCNN's pixels; the mask is
    between rows alone. After n blocks it sees n rows up and n columns to either side. What lies outside the grid counts
    as zero.

    The block 1x1, 1x3, 2x1, 1x1 is that of public CPC v2 implementations; the paper (arXiv:1905.09272) draws no more
    of it than its name.

    Args:
        width: width of each direction's contexts.
        num_blocks: residual blocks; the grid's number of rows lets contexts see all rows before.
        hidden_dim: width within a block.
        directions: see `GridContext`.

    Raises:
        ValueError: if a number is below 1, or on unknown directions.
    """

    def __init__(
        self,
        width: int = 256,
        num_blocks: int = 5,
        hidden_dim: int = 256,
        directions: tuple[str, ...] = ("down",),
    ) -> None:
        super().__init__(width, directions)
        if min(num_blocks, hidden_dim) < 1:
            raise ValueError(f"num_blocks={num_blocks} and hidden_dim={hidden_dim} must be at least 1")
        self.num_blocks = num_blocks
        self.hidden_dim = hidden_dim

    def _network(self, input_dim: int) -> nn.Module:
        blocks = (MaskedBlock(self.width, self.hidden_dim) for _ in range(self.num_blocks))
        projection = nn.Identity() if input_dim == self.width else nn.Linear(input_dim, self.width)
        return nn.Sequential(projection, *blocks)


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
