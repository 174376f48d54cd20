"""The log-uniform law, which resembles Zipf's."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cpc.candidates.samplers.proposal import ProposalSampler


class LogUniform(ProposalSampler):
    """q_i = log((i + 2) / (i + 1)) / log(n + 1), TensorFlow's `log_uniform_candidate_sampler`.

    Classes must be numbered by falling frequency. A draw is floor(exp(u log(n + 1))) - 1. Implementations in
    circulation draw round(exp(u log n)) - 1 and declare the same q: their class 0 comes 0.585 times as often as
    declared at n = 793,471, and every correction with it is wrong.

    The arguments are those of `ProposalSampler`.
    """

    def inverse_cdf(self, uniform: Float[Tensor, "..."]) -> Int[Tensor, "..."]:
        """By inversion: the distribution function of q is log(i + 2) / log(n + 1)."""
        ids = (uniform * math.log1p(self.num_classes)).exp_().long() - 1
        return ids.clamp_(max=self.num_classes - 1)

    def log_probability(self, ids: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The logarithm of the length of a class's part of [0, 1)."""
        return torch.log1p(1 / (ids + 1).double()).log() - math.log(math.log1p(self.num_classes))
