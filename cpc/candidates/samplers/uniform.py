"""The uniform law."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cpc.candidates.samplers.proposal import ProposalSampler


class Uniform(ProposalSampler):
    """q_i = 1 / n. The arguments are those of `ProposalSampler`."""

    def inverse_cdf(self, uniform: Float[Tensor, "..."]) -> Int[Tensor, "..."]:
        """Each of n equal parts of [0, 1) is a class."""
        return (uniform * self.num_classes).long().clamp(max=self.num_classes - 1)

    def log_probability(self, ids: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
        """-log n."""
        return torch.full(ids.shape, -math.log(self.num_classes), dtype=torch.float64, device=ids.device)
