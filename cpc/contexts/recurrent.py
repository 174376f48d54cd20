"""Recurrent context networks: the GRU of the CPC paper, and the LSTM of Riviere et al. 2020 (arXiv:2002.02848).

B batch, L layers, T latents, C context dim.
"""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from cpc.config.argument_rules import Count, Dropout, checked
from cpc.contexts.context import Context, State
from cpc.contexts.gru_layer import gru_layer, has_gru_layer
from cpc.contexts.recurrence import MODES, recurrent_layer, run_in_float16, run_layers


class Recurrent(Context):
    """The base class of `GRU` and `LSTM`.

    On a GPU under autocast, bfloat16's too, cuDNN computes in float16; contexts are float32.

    Args:
        dim: width of the contexts and of every layer.
        num_layers: number of stacked layers.
        dropout: probability of dropping an output between layers.
    """

    num_states: int

    @checked
    def __init__(self, dim: Count = 256, num_layers: Count = 1, dropout: Dropout = 0.0) -> None:
        super().__init__()
        if dropout > 0 and num_layers == 1:
            raise ValueError(f"dropout={dropout} acts between layers, but num_layers=1; raise it or leave dropout at 0")
        self.dim = dim
        self.num_layers = num_layers
        self.dropout = dropout

    @property
    def state_shapes(self) -> tuple[tuple[int, int], ...]:
        """The hidden state, for an LSTM followed by the cell."""
        return ((self.num_layers, self.dim),) * self.num_states

    def _allocate(self, input_dim: int) -> None:
        # RNNBase holds parameters only. Dynamo rejects nn.GRU and nn.LSTM; `run_layers` does what they do.
        size = (input_dim, self.dim, self.num_layers)
        self.layers = nn.RNNBase(MODES[self.num_states], *size, batch_first=True, dropout=self.dropout)

    def _encode(self, z: Tensor, state: State) -> tuple[Tensor, State]:
        # On a CPU bfloat16 takes three times as long (docs/decisions/encoders_and_contexts.md).
        with torch.autocast("cpu", enabled=False) if z.device.type == "cpu" else nullcontext():
            is_half = torch.is_autocast_enabled(z.device.type)
            z = z if is_half else z.to(next(self.parameters()).dtype)  # autocast may have narrowed the latents
            before = state or tuple(z.new_zeros(len(z), *shape) for shape in self.state_shapes)
            if not torch.compiler.is_exporting() and (torch.compiler.is_compiling() or self._is_in_c(z)):
                return self._encode_by_layer(z, before)
            # cuDNN refuses strided states.
            layers_first = [rearrange(each, "b l c -> l b c").contiguous() for each in before]
            inputs = (z, *layers_first, *self.layers.parameters())
            contexts, *after = run_in_float16(self._run, *inputs) if is_half else self._run(*inputs)
        return contexts, tuple(rearrange(each, "l b c -> b l c") for each in after)

    def _run(self, z: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        state, weights = rest[: self.num_states], rest[self.num_states :]
        return run_layers(z, state, weights, self.dropout, self.training)

    def _is_in_c(self, z: Tensor) -> bool:
        return self.num_states == 1 and has_gru_layer(z)

    def _encode_by_layer(self, z: Tensor, before: tuple[Tensor, ...]) -> tuple[Tensor, State]:
        after: list[tuple[Tensor, ...]] = []
        for layer in range(self.num_layers):
            if layer > 0:
                z = F.dropout(z, self.dropout, self.training)
            names = (f"{name}_l{layer}" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
            weights = [getattr(self.layers, name) for name in names]
            if self._is_in_c(z):
                z = gru_layer(z, before[0][:, layer], *weights)
                after.append((z[:, -1],))
            else:
                state = [rearrange(each[:, layer], "b c -> 1 b c") for each in before]
                z, *last = recurrent_layer(z, state, weights)
                after.append(tuple(each[0] for each in last))
        return z, tuple(torch.stack(layers, 1) for layers in zip(*after, strict=True))


class GRU(Recurrent):
    """Gated recurrent units, the context of the CPC paper; the arguments are those of `Recurrent`.

    The state is `(h [B, L, C],)`. On a CPU with a C compiler `cpc.contexts.gru_layer` computes the layers; elsewhere
    torch does.
    """

    num_states = 1


class LSTM(Recurrent):
    """Long short-term memory with state `(h [B, L, C], cell [B, L, C])`; the arguments are those of `Recurrent`."""

    num_states = 2
