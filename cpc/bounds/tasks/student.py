"""Multivariate Student-t: heavy tails, and information even without correlation.

N pairs, M rows, D dimensions.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float
from scipy.special import digamma, gammaln
from torch import Tensor

from cpc.bounds.tasks.gaussian import CorrelatedGaussians
from cpc.bounds.tasks.task import check_reach

DEFAULT_FREEDOM = 5.0


@dataclass(frozen=True)
class StudentT:
    """Correlated Gaussians, each pair divided by the root of its own chi-square over nu.

    I = I of the Gaussians + f(nu) + f(nu + 2 D) - 2 f(nu + D) with f(v) = ln Gamma(v/2) - v/2 psi(v/2): the difference
    of the entropies of multivariate t distributions (Arellano-Valle, Contreras-Reyes and Genton 2013, Scandinavian
    Journal of Statistics 40(1); used by Czyz et al. 2023, arXiv:2306.11078). The second part is what the common
    divisor tells.

    Attributes:
        correlation: of the Gaussians, between -1 and 1.
        dim: D.
        freedom: nu, degrees of freedom, positive.
    """

    correlation: float
    dim: int
    freedom: float = DEFAULT_FREEDOM

    @classmethod
    def with_information(cls, information_nats: int | float, dim: int) -> "StudentT":
        """The correlation, not negative, that gives this information at 5 degrees of freedom.

        Raises:
            ValueError: if the common divisor alone gives as much.
        """
        of_divisor = cls(0.0, dim).mutual_information_nats
        check_reach("student", information_nats, dim, of_divisor, math.inf)
        return cls(CorrelatedGaussians.with_information(information_nats - of_divisor, dim).correlation, dim)

    @property
    def mutual_information_nats(self) -> float:
        """Of the Gaussians and of the common divisor."""

        def f(v: float) -> float:
            return float(gammaln(v / 2) - v / 2 * digamma(v / 2))

        of_divisor = f(self.freedom) + f(self.freedom + 2 * self.dim) - 2 * f(self.freedom + self.dim)
        return CorrelatedGaussians(self.correlation, self.dim).mutual_information_nats + of_divisor

    def sample(self, num_pairs: int, generator: torch.Generator) -> tuple[Float[Tensor, "N D"], Float[Tensor, "N D"]]:
        """Independent pairs."""
        x, y = CorrelatedGaussians(self.correlation, self.dim).sample(num_pairs, generator)
        # torch draws no chi-square from a generator: numpy does, from a seed of that generator
        seed = int(torch.randint(2**62, (), generator=generator))
        chi_square = torch.from_numpy(np.random.default_rng(seed).chisquare(self.freedom, (num_pairs, 1)))
        scale = (self.freedom / chi_square).sqrt()
        return scale * x, scale * y

    def log_density_ratio(self, x: Float[Tensor, "M D"], y: Float[Tensor, "N D"]) -> Float[Tensor, "M N"]:
        """Log t(x, y) - log t(x) - log t(y), each log t of width w: c(w) - (nu + w) / 2 ln(1 + quadratic form / nu)."""
        nu, d, rho = self.freedom, self.dim, self.correlation
        of_x, of_y = rearrange(x.square().sum(1), "m -> m 1"), rearrange(y.square().sum(1), "n -> 1 n")
        of_pair = (of_x + of_y - 2 * rho * x @ y.T) / (1 - rho**2)
        constant = gammaln(nu / 2) + gammaln(nu / 2 + d) - 2 * gammaln((nu + d) / 2) - d / 2 * math.log1p(-(rho**2))
        return (
            float(constant)
            - (nu + 2 * d) / 2 * torch.log1p(of_pair / nu)
            + (nu + d) / 2 * (torch.log1p(of_x / nu) + torch.log1p(of_y / nu))
        )
