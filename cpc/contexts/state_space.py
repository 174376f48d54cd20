"""A context network of diagonal state-space layers, for long sequences.

B batch, T latents, C context dim, N modes. The first axis of size 2 of a tensor holds real and imaginary parts.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from einops import repeat
from torch import Tensor, nn

from cpc.config.argument_rules import Count, Dropout, Positive, Range, checked
from cpc.contexts.context import Context, State
from cpc.contexts.diagonal_scan import diagonal_scan


def _legs(num_modes: int) -> Tensor:
    """Return the frequencies of the normal part of the HiPPO-LegS matrix (eq. 6 of the paper)."""
    roots = torch.sqrt(2 * torch.arange(2 * num_modes, dtype=torch.float64) + 1)
    skew = torch.outer(roots, roots).triu(1) / 2
    return torch.linalg.eigvals(skew - skew.T).imag.sort().values[num_modes:].float()


# The frequencies of the modes at the start, in radians per unit of time: the imaginary parts of S4D-Lin, S4D-Inv and
# S4D-LegS. The real part is -1/2 in all three.
INITIALISATIONS: dict[str, Callable[[int], Tensor]] = {
    "lin": lambda num_modes: math.pi * torch.arange(num_modes),
    "inv": lambda num_modes: 2 * num_modes / math.pi * (2 * num_modes / (2 * torch.arange(num_modes) + 1) - 1),
    "legs": _legs,
}


class StateSpace(Context):
    """Residual layers of linear recurrences with complex diagonal matrices: S4D, Gu et al. 2022 (arXiv:2206.11893).

    Each channel has N damped oscillations (modes), h_t = exp(d A) h_{t-1} + u_t, whose weighted sum is its output; d is
    the step of the channel in units of time. The longest memory of a channel is about 2 / d latents. There is no
    non-linearity between time steps, so training computes whole sequences fast, and the time of a step does not depend
    on T. Streams carry the states of the recurrence and get the contexts of the whole sequence.

    Each layer is x + W gelu(scan(norm(x))). The state is `(h [B, L, 2, N, C],)`.

    Args:
        dim: width of the contexts and of every layer.
        num_layers: number of stacked layers.
        num_modes: N, complex modes per channel; the paper's state size is 2 N.
        initialisation: frequencies of the modes at the start, of the paper's section 4: `lin` n pi, the Fourier series;
            `inv`, inverse to n; `legs`, those of HiPPO-LegS, to which `inv` is an approximation.
        min_step: smallest step d of a channel at the start, whose memory is then 2 / d latents. Steps are distributed
            log-uniformly.
        max_step: largest step d of a channel at the start.
        dropout: probability of dropping a hidden channel.
    """

    @checked
    def __init__(
        self,
        dim: Count = 256,
        num_layers: Count = 1,
        num_modes: Count = 16,
        initialisation: Literal["lin", "inv", "legs"] = "lin",
        min_step: Positive = 0.001,
        max_step: Positive = 0.1,
        dropout: Dropout = 0.0,
    ) -> None:
        super().__init__()
        Range(0, max_step).check("`min_step`", min_step)
        self.dim = dim
        self.num_layers = num_layers
        self.num_modes = num_modes
        self.initialisation = initialisation
        self.min_step = min_step
        self.max_step = max_step
        self.dropout = dropout

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The states of the recurrence."""
        return ((self.num_layers, 2, self.num_modes, self.dim),)

    def _allocate(self, input_dim: int) -> None:
        self.projection = nn.Identity() if input_dim == self.dim else nn.Linear(input_dim, self.dim)
        self.layers = nn.ModuleList(
            StateSpaceLayer(self.dim, self.num_modes, self.initialisation, self.min_step, self.max_step, self.dropout)
            for _ in range(self.num_layers)
        )

    def _encode(self, z: Tensor, state: State) -> tuple[Tensor, State]:
        hidden = self.projection(z)
        after = []
        for i, layer in enumerate(self.layers):
            hidden, last = layer(hidden, None if state is None else state[0][:, i])
            after.append(last)
        return hidden, (torch.stack(after, 1),)


class StateSpaceLayer(nn.Module):
    """A residual layer x + W gelu(scan(norm(x))) on `[B, T, C]`."""

    time_constants = ("log_step", "log_damping", "frequency")  # read by cpc.contexts.context.time_constants

    def __init__(
        self, dim: int, num_modes: int, initialisation: str, min_step: float, max_step: float, dropout: float
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.norm = nn.LayerNorm(dim)
        self.log_step = nn.Parameter(torch.empty(dim).uniform_(math.log(min_step), math.log(max_step)))
        self.log_damping = nn.Parameter(torch.full((num_modes, dim), math.log(0.5)))
        self.frequency = nn.Parameter(repeat(INITIALISATIONS[initialisation](num_modes), "n -> n c", c=dim).clone())
        self.weight = nn.Parameter(torch.randn(2, num_modes, dim) / math.sqrt(2))
        self.skip = nn.Parameter(torch.randn(dim))
        self.output = nn.Linear(dim, dim)

    def forward(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the output `[B, T, C]`, and the state `[B, 2, N, C]` after it, for the state before it."""
        with torch.autocast(x.device.type, enabled=False):
            inputs = self.norm(x.to(self.skip.dtype))
            decay, weight = self.recurrence()
            before = inputs.new_zeros(len(x), *weight.shape) if state is None else state
            hidden, after = diagonal_scan(inputs, decay, weight, self.skip, before)
            hidden = F.dropout(F.gelu(hidden), self.dropout, self.training)
        return x + self.output(hidden), after

    def recurrence(self) -> tuple[Tensor, Tensor]:
        """Return a and w of `diagonal_scan`, `[2, N, C]`: zero-order hold, table 1 of the paper.

        With A = -damping + i frequency: a = exp(d A), and w = 2 C (a - 1) / A; the factor 2 stands for the conjugate
        modes.
        """
        step, damping = self.log_step.exp(), self.log_damping.exp()
        size, angle = (-step * damping).exp(), step * self.frequency
        a_re, a_im = size * angle.cos(), size * angle.sin()
        # 2 (a - 1) / A = 2 (a - 1) conj(A) / |A|^2
        scale = 2 / (damping**2 + self.frequency**2)
        b_re = scale * (-(a_re - 1) * damping + a_im * self.frequency)
        b_im = scale * (-a_im * damping - (a_re - 1) * self.frequency)
        c_re, c_im = self.weight
        return torch.stack([a_re, a_im]), torch.stack([c_re * b_re - c_im * b_im, c_re * b_im + c_im * b_re])
