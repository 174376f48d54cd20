"""The uniform proposal."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cpc.candidates.samplers.proposal import ProposalSampler


class Uniform(ProposalSampler):
    """A sampler with q_i = 1 / n. The arguments are those of `ProposalSampler`."""

    def inverse_cdf(self, uniform: Float[Tensor, "..."]) -> Int[Tensor, "..."]:  # noqa: D102
        return (uniform * self.num_classes).long().clamp(max=self.num_classes - 1)

    def log_probability(self, ids: Int[Tensor, "..."]) -> Float[Tensor, "..."]:  # noqa: D102
        return torch.full(ids.shape, -math.log(self.num_classes), dtype=torch.float64, device=ids.device)
