"""The interface of context networks, and their common checks.

B batch, T latents, D latent dim, C context dim.
"""

import functools
import sys
from abc import abstractmethod
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from cpc.config.argument_rules import Choices, Count, checked, plain
from cpc.data.tensors import check_tensor

State = tuple[Tensor, ...] | None
ANY_LENGTH = range(sys.maxsize)


class Context(nn.Module):
    """A context network g_ar: z_<=t -> c_t.

    A subclass defines `_encode`, and `state_shapes` and `_allocate` if it has a state and parameters. It must guarantee
    three things: c_t depends only on z_<=t, sequences of a batch do not affect each other, and `state` is the only
    memory between calls. If chunks of a sequence are then encoded one after the other, each with the state of the
    previous chunk, the result is the contexts of the whole sequence. A context that `reads_ahead` guarantees only the
    second.

    Attributes:
        dim: width of the contexts.
        input_dim: width of the latents; None before `connect`.
        directions: directions of time; a single direction of sequences has no name.
        latents: shape of the latents, `sequences` `[B, T, D]` or `grids` `[B, H, W, D]`; must match the encoder.
        has_bounded_state: whether the size of the state does not grow with the length of the sequence.
        reads_ahead: whether c_t depends on later latents, so that a recording is encoded as a whole.
    """

    dim: int
    input_dim: int | None = None
    directions: tuple[str, ...] = ("",)
    latents: Literal["sequences", "grids"] = "sequences"
    has_bounded_state: bool = True
    reads_ahead: bool = False

    @property
    def state_shapes(self) -> tuple[tuple[int | range, ...], ...]:
        """Shapes of the tensors of the state, without the axis of sequences; by default empty, for no state.

        A range holds the legal lengths of an axis; such axes have the same length in all tensors.
        """
        return ()

    @checked
    def connect(self, input_dim: Count) -> None:
        """Allocate the parameters for latents of width `input_dim`; `CPC` passes the `dim` of its encoder.

        Raises:
            ValueError: if the context is already connected with another width, or the width is below 1.
        """
        self.dim, input_dim = plain((self.dim, input_dim))  # torch's recurrent layers refuse numpy's numbers
        if self.input_dim == input_dim:
            return
        if self.input_dim is not None:
            Choices((self.input_dim,)).check(f"{type(self).__name__}: `input_dim`", input_dim)
        self._allocate(input_dim)
        self.input_dim = input_dim

    def forward(self, z: Float[Tensor, "B *T D"], state: State = None) -> tuple[Float[Tensor, "B *T C"], State]:
        """Encode latents into contexts, from the start of the sequences or from `state`.

        Args:
            z: latents `[B, T, D]` or `[B, H, W, D]`, depending on `latents`; T may be 0.
            state: state after the previous chunk, with sequences along the first axis of every tensor; None at the
                start. The caller detaches the state if needed. A state of fewer bits than the parameters is converted.

        Returns:
            Contexts, and the state after the last latent.

        Raises:
            ValueError: if `connect` was not called, latents have another width or number of axes, or the state is not
                one of this context for these sequences (`check_state`).
        """
        name = type(self).__name__
        if self.input_dim is None:
            raise ValueError(f"this {name} has no parameters yet: call connect(input_dim), or build a CPC with it")
        check_tensor(
            f"z of {name}", z, "floats", ("B", *("T" if self.latents == "sequences" else "HW"), self.input_dim)
        )
        if state is not None:
            state = self.check_state(state, z)
        if z.shape[1] == 0:
            return z.new_zeros(*z.shape[:-1], self.dim), state
        return self._encode(z, state)

    def check_state(self, state: Any, z: Float[Tensor, "B *T D"]) -> tuple[Tensor, ...]:
        """Return a state in the dtype of the parameters, or raise an error if the latents cannot continue from it."""
        shapes = [(z.shape[0], *shape) for shape in self.state_shapes]
        dtype = functools.reduce(torch.promote_types, {each.dtype for each in self.parameters()} or {z.dtype})
        if isinstance(state, tuple) and len(state) == len(shapes) > 0:
            lengths: list[int] = []  # of axes with a range
            if all(
                isinstance(tensor, Tensor)
                and tensor.device == z.device
                and tensor.is_floating_point()
                and torch.promote_types(tensor.dtype, dtype) == dtype
                and _has_shape(tensor, shape, lengths)
                for tensor, shape in zip(state, shapes, strict=True)
            ):
                return tuple(tensor.to(dtype) for tensor in state)
        legal = ", ".join(f"{dtype} [{', '.join(map(_describe_axis, shape))}]" for shape in shapes)
        given = f"({', '.join(map(_describe, state))})" if isinstance(state, tuple) else _describe(state)
        legal = f"({legal}) on {z.device}" if legal else "no state"
        raise ValueError(f"the state is {given}, but for {len(z)} sequences this {type(self).__name__} takes {legal}")

    def split_directions(self, contexts: Float[Tensor, "B ... C"]) -> dict[str, Float[Tensor, "S T c"]]:
        """Return the contexts of each direction as sequences over time."""
        return {"": contexts}

    def sequences(self, num_latents: int) -> tuple[int, int]:
        """Return the number and the length of the sequences in an observation of `num_latents` latents."""
        return 1, num_latents

    def _allocate(self, input_dim: int) -> None:
        """Allocate the parameters; by default there are none."""

    @abstractmethod
    def _encode(self, z: Tensor, state: State) -> tuple[Tensor, State]: ...


def _has_shape(tensor: Tensor, shape: tuple[int | range, ...], lengths: list[int]) -> bool:
    """Return whether the shape is legal; `lengths` collects the length of axes with a range, which must agree."""
    if tensor.ndim != len(shape):
        return False
    for size, axis in zip(tensor.shape, shape, strict=True):
        if isinstance(axis, range):
            lengths.append(size)
            if size != lengths[0] or size >= axis.stop:
                return False
        elif size != axis:
            return False
    return True


def _describe(value: Any) -> str:
    return f"{value.dtype} {list(value.shape)} on {value.device}" if isinstance(value, Tensor) else type(value).__name__


def _describe_axis(axis: int | range) -> str:
    if not isinstance(axis, range):
        return str(axis)
    return "any length" if axis == ANY_LENGTH else f"0 to {axis.stop - 1}"


def time_constants(model: nn.Module) -> set[str]:
    """Return the names of the parameters that layers list as their `time_constants`.

    They set how long a layer remembers, so they are neither decayed in training nor rounded to 16 bits.
    """
    return {
        f"{path}.{name}" for path, module in model.named_modules() for name in getattr(module, "time_constants", ())
    }


def check_latents(encoder: Any, context: Any) -> None:
    """Raise ValueError if only one of encoder and context works on grids."""
    output, accepted = getattr(encoder, "latents", None), getattr(context, "latents", None)
    if None not in (output, accepted) and output != accepted:  # custom modules without the attribute are not checked
        raise ValueError(f"{type(encoder).__name__} gives {output}, but {type(context).__name__} takes {accepted}")
