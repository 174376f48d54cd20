"""Additive uniform noise: exact scores are minus infinity wherever y cannot come from x.

N pairs, M rows, D dimensions.
"""

import math
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float
from scipy.special import lambertw
from torch import Tensor

from cpc.bounds.tasks.task import check_reach


@dataclass(frozen=True)
class AdditiveUniform:
    """x uniform on [0, 1], y = x + noise uniform on [-e, e], independent in each dimension.

    I = h(y) - ln 2e, and y has a trapezium for a density: e - ln 2e per dimension for e <= 1/2, 1 / (4 e) above (Czyz
    et al. 2023, arXiv:2306.11078).

    Attributes:
        noise: e, positive.
        dim: D.
    """

    noise: float
    dim: int

    @classmethod
    def with_information(cls, information_nats: int | float, dim: int) -> "AdditiveUniform":
        """The noise that gives this information: e - ln 2e = i solves to e = -W(-exp(-i) / 2), Lambert's W.

        Raises:
            ValueError: if the information or `dim` is not positive.
        """
        check_reach("uniform", information_nats, dim, 0, math.inf)
        each = information_nats / dim
        return cls(1 / (4 * each) if each < 0.5 else -float(lambertw(-math.exp(-each) / 2).real), dim)

    @property
    def mutual_information_nats(self) -> float:
        """Over all dimensions."""
        each = self.noise - math.log(2 * self.noise) if self.noise <= 0.5 else 1 / (4 * self.noise)
        return self.dim * each

    def sample(self, num_pairs: int, generator: torch.Generator) -> tuple[Float[Tensor, "N D"], Float[Tensor, "N D"]]:
        """Independent pairs."""
        x, uniform = torch.rand(2, num_pairs, self.dim, generator=generator, dtype=torch.float64)
        return x, x + self.noise * (2 * uniform - 1)

    def log_density_ratio(self, x: Float[Tensor, "M D"], y: Float[Tensor, "N D"]) -> Float[Tensor, "M N"]:
        """-ln 2e - ln p(y) where every |y - x| <= e, else minus infinity."""
        # p(y) is the length of [0, 1] that noise could have come from, divided by 2e; so 2e p(y) is that length
        length = (y + self.noise).clamp(max=1) - (y - self.noise).clamp(min=0)
        of_y = -length.log().sum(1)
        reach = self.noise * (1 + 1e-12)  # a pair at the very edge stays one when y - x is rounded
        is_possible = (rearrange(y, "n d -> 1 n d") - rearrange(x, "m d -> m 1 d")).abs().amax(2) <= reach
        return rearrange(of_y, "n -> 1 n").expand_as(is_possible).masked_fill(~is_possible, -math.inf)
