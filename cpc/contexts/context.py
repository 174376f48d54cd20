"""What every context network promises, and the checks that all of them share.

B batch, T latents, D latent dim, C context dim.
"""

from abc import abstractmethod
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor, nn

State = tuple[Tensor, ...] | None


class Context(nn.Module):
    """g_ar: z_<=t -> c_t. A subclass gives `_allocate` and `_encode`.

    The promises: c_t depends on z_<=t alone; sequences of a batch do not see each other; only `state` is remembered
    between calls, so that chunks encoded one after the other, each with the state of the one before, give the contexts
    of the whole sequence.

    Attributes:
        dim: width of the contexts.
        input_dim: width of the latents; None before `connect`.
        directions: in which time runs; one, without a name, where latents are a sequence.
        latents: what it reads, `sequences` `[B, T, D]` or `grids` `[B, H, W, D]`, as encoders say what they give.
        has_bounded_state: whether the state stays of one size, however long the sequence that it comes from.
    """

    dim: int
    input_dim: int | None = None
    directions: tuple[str, ...] = ("",)
    latents: Literal["sequences", "grids"] = "sequences"
    has_bounded_state: bool = True

    def connect(self, input_dim: int) -> None:
        """Allocate the parameters for latents of width `input_dim`; `CPC` calls it with its encoder's `dim`.

        Raises:
            ValueError: if latents of another width were connected before, or a width is below 1.
        """
        if self.input_dim == input_dim:
            return
        if self.input_dim is not None:
            raise ValueError(
                f"this {type(self).__name__} is connected to latents of width {self.input_dim} and cannot take "
                f"width {input_dim} as well: build one context per encoder"
            )
        for name, width in (("input_dim", input_dim), ("dim", self.dim)):
            if width < 1:
                raise ValueError(f"{name}={width} of {type(self).__name__} must be at least 1")
        self._allocate(input_dim)
        self.input_dim = input_dim

    def forward(self, z: Float[Tensor, "B *T D"], state: State = None) -> tuple[Float[Tensor, "B *T C"], State]:
        """Encode latents into contexts, from the start of the sequences or from where `state` left them.

        Args:
            z: latents `[B, T, D]` or `[B, H, W, D]`, as `latents` says; T may be 0.
            state: what the call on the preceding chunk returned, sequences first in every tensor; None at the start.
                Detaching it is up to the caller.

        Returns:
            Contexts, and the state after the last latent.

        Raises:
            ValueError: before `connect`, on latents of another width or number of axes, or on a state of another number
                of sequences.
        """
        name = type(self).__name__
        if self.input_dim is None:
            raise ValueError(f"this {name} has no parameters yet: call connect(input_dim), or build a CPC with it")
        axes = ["B", "T", "D"] if self.latents == "sequences" else ["B", "H", "W", "D"]
        if z.ndim != len(axes):
            raise ValueError(f"{name} takes latents [{', '.join(axes)}], got {tuple(z.shape)}")
        if z.shape[-1] != self.input_dim:
            raise ValueError(f"this {name} is connected to latents of width {self.input_dim}, got width {z.shape[-1]}")
        if state is not None and len(state[0]) != len(z):
            raise ValueError(
                f"the state belongs to {len(state[0])} sequences, the latents to {len(z)}: begin new sequences "
                "with state=None"
            )
        if z.shape[1] == 0:
            return z.new_zeros(*z.shape[:-1], self.dim), state
        return self._encode(z, state)

    def split_directions(self, contexts: Float[Tensor, "B ... C"]) -> dict[str, Float[Tensor, "S T c"]]:
        """Contexts as sequences over time, for each of `directions` those that predict along it."""
        return {"": contexts}

    def sequences(self, num_latents: int) -> tuple[int, int]:
        """Sequences in so many latents of an observation, and the latents of each."""
        return 1, num_latents

    @abstractmethod
    def _allocate(self, input_dim: int) -> None: ...

    @abstractmethod
    def _encode(self, z: Tensor, state: State) -> tuple[Tensor, State]: ...


def check_latents(encoder: Any, context: Any) -> None:
    """Refuse a context of sequences for an encoder of grids, and the other way round.

    Raises:
        ValueError: naming both.
    """
    given, taken = getattr(encoder, "latents", None), getattr(context, "latents", None)
    if None not in (given, taken) and given != taken:  # parts of one's own may leave it out, and are believed
        raise ValueError(
            f"the context is {type(context).__name__}, but the latents of {type(encoder).__name__} are {given}: "
            f"choose {'PixelCNN' if given == 'grids' else 'GRU, for example'}"
        )
