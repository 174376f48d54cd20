"""Contexts without memory."""

from torch import Tensor

from cpc.contexts.context import Context, State


class Identity(Context):
    """c_t = z_t: latents predict latents, with nothing remembered (as Anand et al. 2019, arXiv:1906.08226, train).

    For observations that show the whole state, such as frames of most games.
    """

    def __init__(self) -> None:  # without it, it would seem to take nn.Module's arguments
        super().__init__()

    def connect(self, input_dim: int) -> None:
        """As wide as the latents."""
        if self.input_dim is None:
            self.dim = input_dim
        super().connect(input_dim)

    def _allocate(self, input_dim: int) -> None:
        """Nothing."""

    def _encode(self, z: Tensor, state: State) -> tuple[Tensor, State]:
        return z, (z[:, 0, :0],)
