"""A proposal that follows the frequencies of the targets seen so far."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from cpc.candidates.samplers.proposal import Counts, ProposalSampler


class LearnedUnigram(ProposalSampler):
    """A sampler with q_i proportional to 1 + the count of class i among past targets: TensorFlow's `learned_unigram`.

    In training mode, candidates are sampled by the counts before the batch, then the targets of the batch are counted;
    after `eval()` the counts are fixed. The counts are integers in a buffer, so a checkpoint restores them. A sample
    costs a cumulative sum over n classes, an update costs one addition per target. Each process of a distributed run
    counts its own targets.

    The arguments are those of `ProposalSampler`.
    """

    def __init__(
        self, num_classes: int, *, shared: bool = True, replacement: bool = False, counts: Counts | None = None
    ) -> None:
        super().__init__(num_classes, shared=shared, replacement=replacement, counts=counts)
        self.num_seen = nn.Buffer(torch.ones(num_classes, dtype=torch.int64))

    def observe(self, targets: Int[Tensor, "M ..."]) -> None:
        """Count these targets; -1 is ignored."""
        seen = targets[targets >= 0]
        self.num_seen.index_add_(0, seen, torch.ones_like(seen))

    def inverse_cdf(self, uniform: Float[Tensor, "..."]) -> Int[Tensor, "..."]:  # noqa: D102
        bounds = self.num_seen.cumsum(0)
        positions = (uniform * bounds[-1]).long().clamp(max=bounds[-1] - 1)
        return torch.searchsorted(bounds, positions, right=True)

    def log_probability(self, ids: Int[Tensor, "..."]) -> Float[Tensor, "..."]:  # noqa: D102
        return self.num_seen[ids].double().log() - self.num_seen.sum().double().log()
