"""Correlated Gaussians, the task of Belghazi et al. 2018 and Poole et al. 2019.

N pairs, M rows, D dimensions.
"""

import math
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from cpc.bounds.tasks.task import check_reach


@dataclass(frozen=True)
class CorrelatedGaussians:
    """Standard normal x and y = rho x + sqrt(1 - rho^2) noise, independent in each dimension.

    I = -D/2 ln(1 - rho^2): half the log of the ratio of marginal to conditional variance, dimension by dimension (Cover
    and Thomas, Elements of Information Theory, section 8.5).

    Attributes:
        correlation: rho, between -1 and 1.
        dim: D.
    """

    correlation: float
    dim: int

    @classmethod
    def with_information(cls, information_nats: int | float, dim: int) -> "CorrelatedGaussians":
        """The rho, positive, that gives this information.

        Raises:
            ValueError: if the information or `dim` is not positive.
        """
        check_reach("gaussian", information_nats, dim, 0, math.inf)
        return cls(math.sqrt(-math.expm1(-2 * information_nats / dim)), dim)

    @property
    def mutual_information_nats(self) -> float:
        """-D/2 ln(1 - rho^2)."""
        return -self.dim / 2 * math.log1p(-(self.correlation**2))

    def sample(self, num_pairs: int, generator: torch.Generator) -> tuple[Float[Tensor, "N D"], Float[Tensor, "N D"]]:
        """Independent pairs."""
        x, noise = torch.randn(2, num_pairs, self.dim, generator=generator, dtype=torch.float64)
        return x, self.correlation * x + math.sqrt(1 - self.correlation**2) * noise

    def log_density_ratio(self, x: Float[Tensor, "M D"], y: Float[Tensor, "N D"]) -> Float[Tensor, "M N"]:
        """I - ((x - rho y)^2 - (1 - rho^2) x^2) / (2 (1 - rho^2)), written as one product of matrices."""
        rho, variance = self.correlation, 1 - self.correlation**2
        of_x, of_y = (rho**2 * values.square().sum(1) / 2 for values in (x, y))
        squares = rearrange(of_x, "m -> m 1") + rearrange(of_y, "n -> 1 n")
        return self.mutual_information_nats + (rho * x @ y.T - squares) / variance
