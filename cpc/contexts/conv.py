"""Causal convolutions as context: no recurrence, so all steps of a sequence train in parallel.

B batch, T latents, C context dim.
"""

import torch
from einops import rearrange
from torch import Tensor, nn

from cpc.contexts.context import Context, State


class CausalConv(Context):
    """A stack of residual causal convolutions, in the manner of wav2vec's context (arXiv:1904.05862).

    Context c_t sees the `receptive_field` latents up to z_t; what lies before the sequence counts as zero. Norms are
    per frame (wav2vec's own runs over time and lets c_t see the future). The state holds, per layer, the last
    convolution inputs `[B, (kernel_size - 1) * dilation_growth**layer, C]`.

    Args:
        dim: width of the contexts and of every layer.
        num_layers: convolutions.
        kernel_size: taps of each convolution.
        dilation_growth: taps of layer i stand `dilation_growth**i` latents apart; 1 for none.
        dropout: probability of dropping an output of a layer before it joins the residual stream.

    Raises:
        ValueError: if `num_layers`, `kernel_size` or `dilation_growth` is below 1.
    """

    def __init__(
        self,
        dim: int = 256,
        num_layers: int = 5,
        kernel_size: int = 3,
        dilation_growth: int = 2,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if min(num_layers, kernel_size, dilation_growth) < 1:
            raise ValueError(
                f"num_layers={num_layers}, kernel_size={kernel_size} and dilation_growth={dilation_growth} must each "
                "be at least 1"
            )
        self.dim = dim
        self.num_layers = num_layers
        self.kernel_size = kernel_size
        self.dilation_growth = dilation_growth
        self.dropout = dropout

    @property
    def receptive_field(self) -> int:
        """How many latents a context sees, its own among them."""
        return 1 + (self.kernel_size - 1) * sum(self.dilation_growth**i for i in range(self.num_layers))

    def _allocate(self, input_dim: int) -> None:
        self.projection = nn.Identity() if input_dim == self.dim else nn.Linear(input_dim, self.dim)
        self.layers = nn.ModuleList(
            ResidualConv(self.dim, self.kernel_size, self.dilation_growth**i, self.dropout)
            for i in range(self.num_layers)
        )

    def _encode(self, z: Tensor, state: State) -> tuple[Tensor, State]:
        hidden = self.projection(z)
        after = []
        for i, layer in enumerate(self.layers):
            hidden, last = layer(hidden, None if state is None else state[i])
            after.append(last)
        return hidden, tuple(after)


class ResidualConv(nn.Module):
    """x + W relu(causal conv(norm(x))) on `[B, T, C]`."""

    def __init__(self, dim: int, kernel_size: int, dilation: int, dropout: float) -> None:
        super().__init__()
        self.num_past = (kernel_size - 1) * dilation
        self.norm = nn.LayerNorm(dim)
        self.conv = nn.Conv1d(dim, dim, kernel_size, dilation=dilation)
        self.output = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, past: Tensor | None) -> tuple[Tensor, Tensor]:
        """One layer; `past` are the `num_past` normalised inputs before `x`, None for zeros."""
        normalised = self.norm(x)
        if past is None:
            inputs = nn.functional.pad(normalised, (0, 0, self.num_past, 0))
        else:
            inputs = torch.cat([past, normalised], 1)
        hidden = rearrange(self.conv(rearrange(inputs, "b t c -> b c t")), "b c t -> b t c")
        # a copy: a view would keep all inputs alive for as long as the state is
        last = inputs[:, inputs.shape[1] - self.num_past :].clone()
        return x + self.dropout(self.output(hidden.relu())), last
