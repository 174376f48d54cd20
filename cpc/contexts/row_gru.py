"""A GRU that runs down the rows of a grid (PixelRNN's row recurrence, van den Oord et al. 2016, arXiv:1601.06759).

B images, T rows, S columns, D latent dim, C context dim.
"""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from cpc.contexts.grid import GridContext


class RowGRU(GridContext):
    """Every column carries a state from row to row and mixes it with those of its neighbours.

    Both the latents of a row and the states of the row before pass through a 1x3 convolution over columns, and then
    through a GRU's gates; c at row r sees all rows up to r, in a cone of one more column to either side per row.

    Args:
        width: width of each direction's contexts.
        directions: see `GridContext`.

    Raises:
        ValueError: on unknown directions or a width below 1.
    """

    def __init__(self, width: int = 256, directions: tuple[str, ...] = ("down",)) -> None:
        super().__init__(width, directions)

    def _network(self, input_dim: int) -> nn.Module:
        return RowRecurrence(input_dim, self.width)


class RowRecurrence(nn.Module):
    """h_t = GRU(conv(z_t), conv(h_{t-1})), all columns of a row at once."""

    def __init__(self, input_dim: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.from_latents = nn.Conv1d(input_dim, 3 * width, 3, padding=1)
        self.from_states = nn.Conv1d(width, 3 * width, 3, padding=1)

    def forward(self, z: Float[Tensor, "B T S D"]) -> Float[Tensor, "B T S C"]:
        """Row after row, from a state of zeros."""
        num_images, num_rows, _, _ = z.shape
        inputs = rearrange(self.from_latents(rearrange(z, "b t s d -> (b t) d s")), "(b t) c s -> t b c s", t=num_rows)
        state = inputs.new_zeros(num_images, self.width, z.shape[2])
        states = []
        for row in inputs:
            state = self._step(row, state)
            states.append(state)
        return rearrange(torch.stack(states), "t b c s -> b t s c")

    def _step(self, row: Float[Tensor, "B c3 S"], state: Float[Tensor, "B C S"]) -> Float[Tensor, "B C S"]:
        reset_row, update_row, new_row = row.chunk(3, 1)
        reset_state, update_state, new_state = self.from_states(state).chunk(3, 1)
        update = (update_row + update_state).sigmoid()
        proposal = (new_row + (reset_row + reset_state).sigmoid() * new_state).tanh()
        return update * state + (1 - update) * proposal
