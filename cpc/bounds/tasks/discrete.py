"""A discrete channel: symbols that arrive, or are replaced by another.

N pairs, M rows, D symbols sent at once, S letters of the alphabet.
"""

import math
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float
from scipy.optimize import brentq
from scipy.special import xlogy
from torch import Tensor
from torch.nn.functional import one_hot

from cpc.bounds.tasks.task import check_reach

NUM_LETTERS = 16


@dataclass(frozen=True)
class DiscreteChannel:
    """D uniform letters; each arrives with probability 1 - p, else one of the others, all alike. x and y are one-hot.

    I = D (ln S - H(p) - p ln(S - 1)), the symmetric channel's capacity (Cover and Thomas, section 7.2).

    Attributes:
        error: p, from 0 to 1.
        dim: D.
        num_letters: S, at least 2.
    """

    error: float
    dim: int
    num_letters: int = NUM_LETTERS

    @classmethod
    def with_information(cls, information_nats: int | float, dim: int) -> "DiscreteChannel":
        """The error that gives this information, with an alphabet of 16 letters.

        Raises:
            ValueError: if D letters hold no more.
        """
        check_reach("discrete", information_nats, dim, 0, dim * math.log(NUM_LETTERS))
        without_any = 1 - 1 / NUM_LETTERS
        error = brentq(lambda p: cls(p, dim).mutual_information_nats - information_nats, 0, without_any, xtol=1e-15)
        return cls(float(error), dim)

    @property
    def mutual_information_nats(self) -> float:
        """Over all letters."""
        p = self.error
        entropy = -xlogy(p, p) - xlogy(1 - p, 1 - p)
        return float(self.dim * (math.log(self.num_letters) - entropy - p * math.log(self.num_letters - 1)))

    def sample(self, num_pairs: int, generator: torch.Generator) -> tuple[Float[Tensor, "N W"], Float[Tensor, "N W"]]:
        """Independent pairs of width W = D S."""
        size = (num_pairs, self.dim)
        sent = torch.randint(self.num_letters, size, generator=generator)
        shift = torch.randint(1, self.num_letters, size, generator=generator)
        is_wrong = torch.rand(size, generator=generator, dtype=torch.float64) < self.error
        arrived = (sent + shift * is_wrong) % self.num_letters
        return self._encoded(sent), self._encoded(arrived)

    def _encoded(self, letters: Tensor) -> Tensor:
        return rearrange(one_hot(letters, self.num_letters), "n d s -> n (d s)").double()

    def log_density_ratio(self, x: Float[Tensor, "M W"], y: Float[Tensor, "N W"]) -> Float[Tensor, "M N"]:
        """Ln S (1 - p) for each letter that agrees, ln S p / (S - 1) for each other; minus infinity without errors."""
        num_right = x @ y.T
        of_right = math.log(self.num_letters * (1 - self.error)) if self.error < 1 else -math.inf
        of_wrong = math.log(self.num_letters * self.error / (self.num_letters - 1)) if self.error > 0 else -math.inf
        zero = torch.zeros_like(num_right)  # 0 times minus infinity is 0 here: no such letter
        right = torch.where(num_right > 0, num_right * of_right, zero)
        return right + torch.where(num_right < self.dim, (self.dim - num_right) * of_wrong, zero)
