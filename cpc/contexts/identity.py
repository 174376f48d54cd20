"""A context network without memory."""

from torch import Tensor

from cpc.contexts.context import Context, State


class Identity(Context):
    """A context network with c_t = z_t: latents predict latents, as in Anand et al. 2019 (arXiv:1906.08226).

    Use it for observations that show the whole state, such as frames of most games.
    """

    def __init__(self) -> None:  # hides the arguments of nn.Module from the signature
        super().__init__()

    def connect(self, input_dim: int) -> None:
        """Set `dim` to the width of the latents."""
        if self.input_dim is None:
            self.dim = input_dim
        super().connect(input_dim)

    @property
    def state_shapes(self) -> tuple[tuple[int], ...]:
        """One tensor of no width, which holds the number of sequences."""
        return ((0,),)

    def _encode(self, z: Tensor, state: State) -> tuple[Tensor, State]:
        return z, (z[:, 0, :0],)
