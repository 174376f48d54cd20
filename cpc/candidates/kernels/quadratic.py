"""The quadratic kernel, whose features are exact.

D dims, F features.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from cpc.candidates.kernels.kernel_map import KernelMap


class Quadratic(KernelMap):
    """K(x, y) = alpha (x . y)^2 + beta: Blanc and Rendle 2018 (arXiv:1712.00527), there with alpha = 100, beta = 1.

    Never negative. As x and y of opposite directions count as similar, it suits the absolute softmax, which those
    authors train, better than the plain one. Products x_i x_j are kept once: F = D (D + 1) / 2 + 1.

    Args:
        dim: D.
        alpha: weight of the square; for scores x . y / T, alpha = 100 / T^2 is alpha = 100 of the scores.
        beta: mass that every class has, whatever its direction.
    """

    factors: Tensor
    pairs: Tensor

    def __init__(self, dim: int, alpha: float = 100.0, beta: float = 1.0) -> None:
        super().__init__(dim, dim * (dim + 1) // 2 + 1, alpha=alpha, beta=beta)
        self.alpha = alpha
        self.beta = beta
        rows, columns = torch.triu_indices(dim, dim)
        # (x . y)^2 holds every product of two different dimensions twice.
        self.register_buffer("factors", torch.where(rows == columns, 1.0, math.sqrt(2)) * math.sqrt(alpha))
        self.register_buffer("pairs", torch.stack([rows, columns]))

    def forward(self, x: Float[Tensor, "*M D"]) -> Float[Tensor, "*M F"]:
        """The products of all pairs, and the constant."""
        rows, columns = self.pairs
        products = x[..., rows] * x[..., columns] * self.factors
        return torch.cat([products, torch.full_like(x[..., :1], math.sqrt(self.beta))], dim=-1)
