"""The law of the targets seen so far."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cpc.candidates.samplers.proposal import ProposalSampler


class LearnedUnigram(ProposalSampler):
    """q_i proportional to 1 + the number of times that class i was a target: TensorFlow's `learned_unigram`.

    In training mode a draw is made from what was seen before its batch, then the batch's targets are added; after
    `eval()` the law is fixed. Counts are integers in a buffer, so that a checkpoint resumes the law. A draw costs a
    cumulative sum over n, an update only what it adds. Each process of a distributed run learns from its own targets.

    The arguments are those of `ProposalSampler`.
    """

    num_seen: Tensor

    def __init__(
        self, num_classes: int, *, shared: bool = True, replacement: bool = False, counts: str | None = None
    ) -> None:
        super().__init__(num_classes, shared=shared, replacement=replacement, counts=counts)
        self.register_buffer("num_seen", torch.ones(num_classes, dtype=torch.int64))

    def observe(self, targets: Int[Tensor, "M ..."]) -> None:
        """Count these targets; -1 is none."""
        seen = targets[targets >= 0]
        self.num_seen.index_add_(0, seen, torch.ones_like(seen))

    def inverse_cdf(self, uniform: Float[Tensor, "..."]) -> Int[Tensor, "..."]:
        """By inversion, in integers."""
        bounds = self.num_seen.cumsum(0)
        places = (uniform * bounds[-1]).long().clamp(max=bounds[-1] - 1)
        return torch.searchsorted(bounds, places, right=True)

    def log_probability(self, ids: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The logarithm of a class's share of all that was counted."""
        return self.num_seen[ids].double().log() - self.num_seen.sum().double().log()
