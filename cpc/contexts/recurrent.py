"""Recurrent context networks: the GRU of the CPC paper, and the LSTM of Riviere et al. 2020 (arXiv:2002.02848).

B batch, L layers, T latents, C context dim.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from cpc.config.argument_rules import Count, Dropout, checked
from cpc.contexts.context import Context, State
from cpc.contexts.gru_layer import gru_layer, has_gru_layer


class Recurrent(Context):
    """The base class of `GRU` and `LSTM`.

    Args:
        dim: width of the contexts and of every layer.
        num_layers: number of stacked layers.
        dropout: probability of dropping an output between layers.

    Raises:
        ValueError: if there is no layer, or `dropout` is set but there is no second layer for it.
    """

    @checked
    def __init__(self, dim: Count = 256, num_layers: Count = 1, dropout: Dropout = 0.0) -> None:
        super().__init__()
        if dropout > 0 and num_layers == 1:
            raise ValueError(f"dropout={dropout} acts between layers, but num_layers=1; raise it or leave dropout at 0")
        self.dim = dim
        self.num_layers = num_layers
        self.dropout = dropout

    def _cast(self, z: Tensor) -> Tensor:
        """Return latents, which autocast may have narrowed, in the dtype of the weights; under autocast, unchanged."""
        return z if torch.is_autocast_enabled(z.device.type) else z.to(next(self.parameters()).dtype)


class GRU(Recurrent):
    """Gated recurrent units, the context of the CPC paper; the arguments are those of `Recurrent`.

    The state is `(h [B, L, C],)`. On a CPU with a C compiler `cpc.contexts.gru_layer` computes the layers; elsewhere
    torch does.
    """

    @property
    def state_shapes(self) -> tuple[tuple[int, int], ...]:
        """The hidden state."""
        return ((self.num_layers, self.dim),)

    def _allocate(self, input_dim: int) -> None:
        self.layers = nn.GRU(input_dim, self.dim, self.num_layers, batch_first=True, dropout=self.dropout)

    def _encode(self, z: Tensor, state: State) -> tuple[Tensor, State]:
        with _float32_on_cpu(z):
            z = self._cast(z)
            if has_gru_layer(z) and not torch.compiler.is_exporting():
                return self._encode_by_layer(z, state)
            contexts, hidden = self.layers(z, None if state is None else _layers_first(state[0]))
        return contexts, (_sequences_first(hidden),)

    def _encode_by_layer(self, z: Tensor, state: State) -> tuple[Tensor, State]:
        before = z.new_zeros(len(z), self.num_layers, self.dim) if state is None else state[0]
        after = []
        for layer in range(self.num_layers):
            if layer > 0:
                z = F.dropout(z, self.dropout, self.training)
            names = (f"{name}_l{layer}" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
            z = gru_layer(z, before[:, layer], *(getattr(self.layers, name) for name in names))
            after.append(z[:, -1])
        return z, (torch.stack(after, 1),)


class LSTM(Recurrent):
    """Long short-term memory with state `(h [B, L, C], cell [B, L, C])`; the arguments are those of `Recurrent`."""

    @property
    def state_shapes(self) -> tuple[tuple[int, int], ...]:
        """The hidden state and the cell."""
        return ((self.num_layers, self.dim),) * 2

    def _allocate(self, input_dim: int) -> None:
        self.layers = nn.LSTM(input_dim, self.dim, self.num_layers, batch_first=True, dropout=self.dropout)

    def _encode(self, z: Tensor, state: State) -> tuple[Tensor, State]:
        before = None if state is None else tuple(_layers_first(tensor) for tensor in state)
        with _float32_on_cpu(z):
            contexts, after = self.layers(self._cast(z), before)
        return contexts, tuple(_sequences_first(tensor) for tensor in after)


def _float32_on_cpu(z: Tensor) -> AbstractContextManager[object]:
    """Switch autocast off on a CPU: bfloat16 takes three times as long (docs/decisions/encoders_and_contexts.md)."""
    return torch.autocast("cpu", enabled=False) if z.device.type == "cpu" else nullcontext()


def _layers_first(state: Tensor) -> Tensor:
    return rearrange(state, "b l c -> l b c").contiguous()  # cuDNN refuses strided states


def _sequences_first(state: Tensor) -> Tensor:
    return rearrange(state, "l b c -> b l c")
