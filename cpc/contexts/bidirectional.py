"""Contexts of both directions of time (Kawakami et al. 2020, arXiv:2001.11128).

B batch, T latents, D latent dim, C context dim.
"""

from copy import deepcopy

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from cpc.config.argument_rules import Count
from cpc.contexts.context import Context, State
from cpc.contexts.grid import columns


class Bidirectional(Context):
    """Two context networks of one kind: one reads the latents from the first to the last, the other from the last.

    Contexts of the first predict later latents, contexts of the second earlier ones, each with its own predictor. c_t
    holds both, so it depends on the whole sequence. Recordings are therefore encoded as a whole, in memory, and there
    is no state: latents cannot come in chunks. The network that reads from the last latent also reads the padding of
    windows.

    Args:
        context: the network of the forward direction, without weights so far; that of the other has weights of its own.

    Attributes:
        dim: width of both contexts together.

    Raises:
        ValueError: if `context` is no context of sequences in one direction, or is connected already.
    """

    directions = ("forward", "backward")
    has_bounded_state = False
    reads_ahead = True

    def __init__(self, context: Context) -> None:
        super().__init__()
        if getattr(context, "directions", None) != ("",) or context.input_dim is not None:
            given = f"Bidirectional: `context` is {context}"
            raise ValueError(f"{given}, but must be a context of one direction that is not connected")
        self.context = context
        self.backward_context = deepcopy(context)

    def connect(self, input_dim: Count) -> None:
        """Allocate the parameters of both networks; as in `Context`."""
        for network in (self.context, self.backward_context):
            network.connect(input_dim)
        self.dim = 2 * self.context.dim
        super().connect(input_dim)

    def split_directions(self, contexts: Float[Tensor, "B T C"]) -> dict[str, Float[Tensor, "B T c"]]:
        """Return the contexts of each direction in the order in which its network reads."""
        halves = rearrange(contexts, "b t (v c) -> v b t c", v=2)
        return {direction: columns(c, direction) for direction, c in zip(self.directions, halves, strict=True)}

    def _encode(self, z: Float[Tensor, "B T D"], state: State) -> tuple[Float[Tensor, "B T C"], State]:
        later, _ = self.backward_context(z.flip(1))
        # No context takes the state (), so a second chunk is an error.
        return torch.cat([self.context(z)[0], later.flip(1)], 2), ()
