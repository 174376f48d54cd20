"""A fixed proposal from class counts."""

from collections.abc import Sequence

from jaxtyping import Float, Int
from torch import Tensor

from cpc.candidates.samplers.alias_table import build_alias_table, sample_alias_table
from cpc.candidates.samplers.proposal import Counts, ProposalSampler
from cpc.candidates.samplers.sampler import counts_tensor, proportions


class Unigram(ProposalSampler):
    """A sampler with q_i proportional to count_i ** distortion: TensorFlow's `fixed_unigram_candidate_sampler`.

    word2vec uses distortion 0.75.

    Args:
        counts_of_classes: `[n]`, count or probability of each class; 0 for a class that is never sampled. An integer n
            gives a uniform proposal until `set_counts` or `follow` is called, as pretraining on text does.
        distortion: 1 keeps the proportions of the counts, 0 makes q uniform over the classes with a positive count.
        shared: see `ProposalSampler`, also for `replacement` and `counts`.
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
        counts: Counts | None = None,
    ) -> None:
        tensor = counts_tensor(counts_of_classes)
        super().__init__(tensor.numel(), shared=shared, replacement=replacement, counts=counts)
        self.counts_of_classes = self.num_classes  # rebuilds the sampler from a checkpoint: q is in the buffers
        self.distortion = distortion
        for name in ("log_q", "num_positive", "thresholds", "aliases"):
            self.register_buffer(name, None)
        self.set_counts(tensor)
        self.is_open = isinstance(counts_of_classes, int)

    def set_counts(self, counts_of_classes: Tensor | Sequence[float | int]) -> None:
        """Set q from these counts."""
        probabilities = proportions(counts_of_classes, self.num_classes, self.distortion)
        self.log_q, self.num_positive = probabilities.log(), (probabilities > 0).sum()
        self.thresholds, self.aliases = build_alias_table(probabilities)
        self.is_open = False

    @property
    def num_possible(self) -> int:
        """The number of classes with a positive count."""
        return int(self.num_positive)

    def inverse_cdf(self, uniform: Float[Tensor, "..."]) -> Int[Tensor, "..."]:  # noqa: D102
        return sample_alias_table(uniform, self.thresholds, self.aliases)

    def log_probability(self, ids: Int[Tensor, "..."]) -> Float[Tensor, "..."]:  # noqa: D102
        return self.log_q[ids]
