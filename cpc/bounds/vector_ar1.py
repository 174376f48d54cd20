"""Sequences with known information: a stationary vector autoregression of first order.

B sequences, T time steps, D dimensions.
"""

import math
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from cpc.bounds.tasks import CorrelatedGaussians
from cpc.config.argument_rules import Range


@dataclass(frozen=True)
class VectorAR1:
    """The process x_t = a x_{t-1} + sqrt(1 - a^2) e_t with standard normal e_t, independent in each dimension.

    The process is Markov, so I(x_{t+k}; x_<=t) = I(x_{t+k}; x_t), and this is the information of Gaussians with
    correlation a^k. A good context network approaches this value, and none can exceed it.
    """

    coefficient: float
    dim: int

    def __post_init__(self) -> None:
        Range(0, 1, is_open=True, is_below=True).check("the absolute value of coefficient", abs(self.coefficient))

    def mutual_information_nats(self, step: int) -> float:
        """Return I(x_{t+k}; x_t) for k = `step`, in nats."""
        return CorrelatedGaussians(self.coefficient**step, self.dim).mutual_information_nats

    def sample(self, num_sequences: int, num_steps: int, generator: torch.Generator) -> Float[Tensor, "B T D"]:
        """Sample independent stationary sequences."""
        noise = torch.randn(num_steps, num_sequences, self.dim, generator=generator)
        x = [noise[0]]
        for e in noise[1:]:
            x.append(self.coefficient * x[-1] + math.sqrt(1 - self.coefficient**2) * e)
        return rearrange(x, "t b d -> b t d")

    def optimal_scores(self, x: Float[Tensor, "M D"], y: Float[Tensor, "N D"], step: int) -> Float[Tensor, "M N"]:
        """Return the exact scores log p(y | x) / p(y) for y = x_{t+k}, which maximise InfoNCE for any N."""
        return CorrelatedGaussians(self.coefficient**step, self.dim).log_density_ratio(x.double(), y.double())
