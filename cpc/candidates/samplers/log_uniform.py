"""The log-uniform proposal, which resembles Zipf's law."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cpc.candidates.samplers.proposal import ProposalSampler


class LogUniform(ProposalSampler):
    """A sampler with q_i = log((i + 2) / (i + 1)) / log(n + 1): TensorFlow's `log_uniform_candidate_sampler`.

    Classes must be sorted by falling frequency. A sample is floor(exp(u log(n + 1))) - 1. Some implementations sample
    round(exp(u log n)) - 1 and return the same q: at n = 793,471 they sample class 0 only 0.585 times as often as q, so
    every correction by q is wrong.

    The arguments are those of `ProposalSampler`.
    """

    def inverse_cdf(self, uniform: Float[Tensor, "..."]) -> Int[Tensor, "..."]:
        """Invert the distribution function of q, log(i + 2) / log(n + 1)."""
        ids = (uniform * math.log1p(self.num_classes)).exp_().long() - 1
        return ids.clamp_(max=self.num_classes - 1)

    def log_probability(self, ids: Int[Tensor, "..."]) -> Float[Tensor, "..."]:  # noqa: D102
        return torch.log1p(1 / (ids + 1).double()).log() - math.log(math.log1p(self.num_classes))
