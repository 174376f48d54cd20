"""A law mixed with the uniform one."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cpc.candidates.samplers.proposal import ProposalSampler


class UniformMixture(ProposalSampler):
    """(1 - share) q + share / n: no class is further than log(share) below uniform, so no weight 1 / q explodes.

    Args:
        proposal: q; how candidates are drawn (shared, replacement, counts) is taken over from it.
        share: of the uniform law, in (0, 1).

    Raises:
        ValueError: on another share.
    """

    def __init__(self, proposal: ProposalSampler, share: float = 0.1) -> None:
        super().__init__(
            proposal.num_classes, shared=proposal.shared, replacement=proposal.replacement, counts=proposal.counts
        )
        if not 0 < share < 1:
            raise ValueError(f"share={share} must lie between 0 and 1: that of the uniform law")
        self.proposal = proposal
        self.share = share

    def expected_counts(self, num: int, device: torch.device | str = "cpu") -> Float[Tensor, " n"] | None:
        """None where the law inside has none."""
        return None if self.proposal.expected_counts(num, device) is None else super().expected_counts(num, device)

    def follow(self, counts: Int[Tensor, " n"]) -> None:
        """What the law inside follows."""
        self.proposal.follow(counts)

    def observe(self, targets: Int[Tensor, "M ..."]) -> None:
        """What the law inside learns."""
        self.proposal.observe(targets)

    def look_ahead(self, targets_of: Callable[[int], Tensor], num_batches: int) -> None:
        """For the law inside."""
        self.proposal.look_ahead(targets_of, num_batches)

    def set_step(self, batch: int) -> None:
        """Likewise."""
        self.proposal.set_step(batch)

    def inverse_cdf(self, uniform: Float[Tensor, "..."]) -> Int[Tensor, "..."]:
        """The first `share` of [0, 1) is the uniform law's, the rest the other's."""
        even = (uniform / self.share * self.num_classes).long().clamp(max=self.num_classes - 1)
        rest = ((uniform - self.share) / (1 - self.share)).clamp(0, 1)
        return torch.where(uniform < self.share, even, self.proposal.inverse_cdf(rest))

    def log_probability(self, ids: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The logarithm of the sum of both."""
        log_even = torch.tensor(math.log(self.share / self.num_classes), dtype=torch.float64, device=ids.device)
        return torch.logaddexp(math.log1p(-self.share) + self.proposal.log_probability(ids), log_even)
