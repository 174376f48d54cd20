"""Two latents of a sequence as a pair: what CPC predicts, and what it predicts from.

N pairs, M rows, D dimensions.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from cpc.bounds.tasks.task import check_reach
from cpc.bounds.vector_ar1 import VectorAR1

DEFAULT_LAG = 4


@dataclass(frozen=True)
class LaggedAR1:
    """(x_t, x_{t+k}) of independent sequences of a vector AR(1): see `VectorAR1` for the closed form.

    Attributes:
        process: whose sequences.
        lag: k.
    """

    process: VectorAR1
    lag: int = DEFAULT_LAG

    @classmethod
    def with_information(cls, information_nats: int | float, dim: int) -> "LaggedAR1":
        """The coefficient, positive, that gives this information four steps ahead.

        Raises:
            ValueError: if the information or `dim` is not positive.
        """
        check_reach("vector_ar1", information_nats, dim, 0, math.inf)
        return cls(VectorAR1((-math.expm1(-2 * information_nats / dim)) ** (0.5 / DEFAULT_LAG), dim))

    @property
    def dim(self) -> int:
        """Of the process."""
        return self.process.dim

    @property
    def mutual_information_nats(self) -> float:
        """I(x_{t+k}; x_t)."""
        return self.process.mutual_information_nats(self.lag)

    def sample(self, num_pairs: int, generator: torch.Generator) -> tuple[Float[Tensor, "N D"], Float[Tensor, "N D"]]:
        """First and last of sequences of k + 1."""
        sequences = self.process.sample(num_pairs, self.lag + 1, generator).double()
        return sequences[:, 0], sequences[:, -1]

    def log_density_ratio(self, x: Float[Tensor, "M D"], y: Float[Tensor, "N D"]) -> Float[Tensor, "M N"]:
        """As the process says."""
        return self.process.optimal_scores(x, y, self.lag)
