"""A fixed law from counts."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cpc.candidates.samplers.alias_table import alias_draws, build_alias_table
from cpc.candidates.samplers.proposal import ProposalSampler
from cpc.candidates.samplers.sampler import counts_given


class Unigram(ProposalSampler):
    """q_i proportional to count_i ** distortion: TensorFlow's `fixed_unigram_candidate_sampler`, word2vec's at 0.75.

    Args:
        counts_of_classes: `[n]`, how often each class occurs, or its probability; 0 for one that is never drawn. Or n
            alone: a law left open, uniform until `set_counts` or `follow` (which pretraining on text calls).
        distortion: 1 keeps the counts' proportions, 0 makes the law uniform (over what has a count).
        shared: see `ProposalSampler`, also for `replacement` and `counts`.

    Raises:
        ValueError: on counts that are negative, not finite or all zero.
    """

    log_q: Tensor
    num_positive: Tensor
    thresholds: Tensor
    aliases: Tensor

    def __init__(
        self,
        counts_of_classes: Tensor | Sequence[float | int] | int,
        distortion: float = 1.0,
        *,
        shared: bool = True,
        replacement: bool = False,
        counts: str | None = None,
    ) -> None:
        given = counts_given(counts_of_classes)
        super().__init__(given.numel(), shared=shared, replacement=replacement, counts=counts)
        self.counts_of_classes = self.num_classes  # what builds it again: the law itself is in the buffers
        self.distortion = distortion
        for name in ("log_q", "num_positive", "thresholds", "aliases"):
            self.register_buffer(name, None)
        self.set_counts(given)
        self.is_open = isinstance(counts_of_classes, int)

    def set_counts(self, counts_of_classes: Tensor | Sequence[float | int]) -> None:
        """Follow these counts, distorted, from now on."""
        weights = torch.as_tensor(counts_of_classes, dtype=torch.float64)
        if weights.shape != (self.num_classes,) or not bool((weights.isfinite() & (weights >= 0)).all()):
            raise ValueError(
                f"counts of {tuple(weights.shape)} from {float(weights.min())} to {float(weights.max())}: one finite "
                f"count for each of {self.num_classes} classes is needed, none below 0"
            )
        weights = torch.where(weights > 0, weights**self.distortion, 0.0)
        if not 0 < float(weights.sum()) < torch.inf:
            raise ValueError(
                f"count ** distortion (distortion={self.distortion}) sums to {float(weights.sum())}: no law"
            )
        probabilities = weights / weights.sum()
        self.log_q, self.num_positive = probabilities.log(), (probabilities > 0).sum()
        self.thresholds, self.aliases = build_alias_table(probabilities)
        self.is_open = False

    @property
    def num_possible(self) -> int:
        """How many classes have a count."""
        return int(self.num_positive)

    def inverse_cdf(self, uniform: Float[Tensor, "..."]) -> Int[Tensor, "..."]:
        """By the alias method."""
        return alias_draws(uniform, self.thresholds, self.aliases)

    def log_probability(self, ids: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
        """From the table of all classes."""
        return self.log_q[ids]
