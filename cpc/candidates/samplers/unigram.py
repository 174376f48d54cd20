"""A fixed proposal from class counts."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

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
        self.set_counts(tensor)
        self.is_open = isinstance(counts_of_classes, int)

    def set_counts(self, counts_of_classes: Tensor | Sequence[float | int]) -> None:
        """Set q from these counts."""
        probabilities = proportions(counts_of_classes, self.num_classes, self.distortion)
        self.log_q, self.num_positive = nn.Buffer(probabilities.log()), nn.Buffer((probabilities > 0).sum())
        self.thresholds, self.aliases = map(nn.Buffer, build_alias_table(probabilities))
        self.is_open = False

    @property
    def num_possible(self) -> int:
        """The number of classes with a positive count."""
        return int(self.num_positive)

    def inverse_cdf(self, uniform: Float[Tensor, "..."]) -> Int[Tensor, "..."]:
        """Return samples: the leading digits of a number choose a bucket, the rest chooses its class or its alias."""
        scaled = uniform * self.num_classes
        bucket = scaled.long().clamp(max=self.num_classes - 1)
        return torch.where(scaled - bucket < self.thresholds[bucket], bucket, self.aliases[bucket])

    def log_probability(self, ids: Int[Tensor, "..."]) -> Float[Tensor, "..."]:  # noqa: D102
        return self.log_q[ids]


def build_alias_table(probabilities: Float[Tensor, " n"]) -> tuple[Float[Tensor, " n"], Int[Tensor, " n"]]:
    """Return thresholds and aliases of the alias method (Walker 1977), which samples in constant time.

    Numbers in bucket i of n mean class i below the threshold, its alias above. Heavy classes (n q_i >= 1) fill the
    free parts of the buckets of light classes, in order. If less than a full bucket remains of a heavy class, the
    next heavy class fills the bucket of the former. The k-th heavy class therefore fills buckets while the total
    free part of the light classes is below E_k, the total excess of the first k heavy classes. Two searches in
    cumulative sums find every bucket (the sweep of Hübschle-Schneider and Sanders 2022, section 4, for all classes
    at once).
    """
    num_classes = len(probabilities)
    weights = probabilities.double() / probabilities.double().sum() * num_classes
    is_heavy = weights >= weights.max().clamp(max=1)  # rounding of equal classes may leave no heavy class
    heavy, light = is_heavy.nonzero()[:, 0], (~is_heavy).nonzero()[:, 0]
    lacking = (1 - weights[light]).cumsum(0)
    spare = (weights[heavy] - 1).cumsum(0)

    thresholds, aliases = torch.ones_like(weights), torch.arange(num_classes, device=weights.device)
    lacking_before = torch.cat([lacking.new_zeros(1), lacking])[: len(light)]
    server = torch.searchsorted(spare, lacking_before, right=True).clamp(max=len(heavy) - 1)
    thresholds[light], aliases[light] = weights[light], heavy[server]
    if len(light):
        overdrawn = torch.searchsorted(lacking, spare[:-1]).clamp(max=len(light) - 1)
        thresholds[heavy[:-1]] = (1 - (lacking[overdrawn] - spare[:-1])).clamp(0, 1)
        aliases[heavy[:-1]] = heavy[1:]
    return thresholds, aliases
