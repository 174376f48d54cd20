"""A mixture of a proposal with the uniform distribution."""

import math
from collections.abc import Callable
from typing import Annotated

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cpc.candidates.samplers.proposal import ProposalSampler
from cpc.config.argument_rules import Range, checked


class UniformMixture(ProposalSampler):
    """A sampler with the proposal (1 - share) q + share / n; the inverse of this probability is at most n / share.

    Args:
        proposal: the sampler of q, which also sets `shared`, `replacement` and `counts`.
        share: share of the uniform distribution, in (0, 1).
    """

    @checked
    def __init__(
        self, proposal: ProposalSampler, share: Annotated[float, Range(0, 1, is_open=True, is_below=True)] = 0.1
    ) -> None:
        super().__init__(
            proposal.num_classes, shared=proposal.shared, replacement=proposal.replacement, counts=proposal.counts
        )
        self.proposal = proposal
        self.share = share

    def expected_counts(self, num: int, device: torch.device | str = "cpu") -> Float[Tensor, " n"] | None:
        """Return the expected counts; None if the inner proposal has none."""
        return None if self.proposal.expected_counts(num, device) is None else super().expected_counts(num, device)

    def follow(self, counts: Int[Tensor, " n"]) -> None:  # noqa: D102
        self.proposal.follow(counts)

    def observe(self, targets: Int[Tensor, "M ..."]) -> None:  # noqa: D102
        self.proposal.observe(targets)

    def look_ahead(self, targets_of: Callable[[int], Tensor], num_batches: int) -> None:  # noqa: D102
        self.proposal.look_ahead(targets_of, num_batches)

    def set_step(self, batch: int) -> None:  # noqa: D102
        self.proposal.set_step(batch)

    def inverse_cdf(self, uniform: Float[Tensor, "..."]) -> Int[Tensor, "..."]:
        """Map the first `share` of [0, 1) to the uniform distribution, the rest to the inner proposal."""
        uniform_ids = (uniform / self.share * self.num_classes).long().clamp(max=self.num_classes - 1)
        rest = ((uniform - self.share) / (1 - self.share)).clamp(0, 1)
        return torch.where(uniform < self.share, uniform_ids, self.proposal.inverse_cdf(rest))

    def log_probability(self, ids: Int[Tensor, "..."]) -> Float[Tensor, "..."]:  # noqa: D102
        log_uniform = torch.tensor(math.log(self.share / self.num_classes), dtype=torch.float64, device=ids.device)
        return torch.logaddexp(math.log1p(-self.share) + self.proposal.log_probability(ids), log_uniform)
