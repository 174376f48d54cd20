"""Parts of a corpus with few words each."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cpc.candidates.samplers.all import all_of
from cpc.candidates.samplers.proposal import ProposalSampler
from cpc.candidates.samplers.sampler import NO_TARGET, Draw, Hits


class Partition(ProposalSampler):
    """The vocabulary of the part of the corpus at hand (Jean et al. 2015, "On using very large target vocabulary").

    The corpus is cut, in the order in which training meets its targets, into consecutive parts of whole batches with at
    most tau unique words each. Within a part q is uniform over its words and 0 elsewhere. With `num` >= tau every word
    of the part is a candidate once, expected once, whatever the part's size: the paper's method. A smaller `num` draws
    from the part.

    Two things make it work, which pretraining on text does: `look_ahead` once, so that it can read what is to come, and
    `set_step(batch)` before each batch. Targets outside the part are an error. Parts follow from the corpus
    and tau only, so there is no state to be saved: a resumed run finds its part again.

    Z' never sees the words of other parts in this batch, so `importance` is not unbiased here, for any count.

    Args:
        num_classes: n.
        max_words: tau.
        shared: see `ProposalSampler`, also for `replacement` and `counts`.

    Raises:
        ValueError: unless tau is at least 1 and below n.
    """

    remedy = "call set_step(number of the batch) before each batch"

    def __init__(
        self,
        num_classes: int,
        max_words: int,
        *,
        shared: bool = True,
        replacement: bool = False,
        counts: str | None = None,
    ) -> None:
        super().__init__(num_classes, shared=shared, replacement=replacement, counts=counts)
        if not 1 <= max_words < num_classes:
            raise ValueError(
                f"max_words={max_words} is not from 1 to {num_classes - 1}: with all {num_classes} classes in one part "
                "there is nothing to cut; take All, or a full objective"
            )
        self.max_words = max_words
        self._targets_of: Callable[[int], Tensor] | None = None
        self._num_batches = 0
        self._begin()

    @property
    def num_possible(self) -> int:
        """How many words the part at hand has."""
        return len(self.words_of_part())

    @property
    def part(self) -> tuple[int, int]:
        """The first batch of the part at hand, and the first one after it."""
        return self._start, self._end

    def words_of_part(self) -> Int[Tensor, " m"]:
        """The words of the part at hand, in order.

        Raises:
            ValueError: before `look_ahead` and `set_step`.
        """
        if self._targets_of is None or not self._end:
            raise ValueError(
                "Partition is in no part yet: call look_ahead(targets_of, num_batches) and set_step(batch)"
            )
        return self._words

    def look_ahead(self, targets_of: Callable[[int], Tensor], num_batches: int) -> None:
        """Learn what is to come; see `Sampler.look_ahead`. No part is longer than an epoch.

        Raises:
            ValueError: if there is no batch, or one of them has ids out of range or more than tau unique words.
        """
        if num_batches < 1:
            raise ValueError("an empty corpus has no parts")
        self._targets_of, self._num_batches = targets_of, num_batches
        self._begin()
        for number in range(num_batches):
            self._words_of(number)

    def set_step(self, batch: int) -> None:
        """Go to the part that holds the batch of this number.

        Raises:
            ValueError: before `look_ahead`.
        """
        if self._targets_of is None:
            raise ValueError("Partition knows no corpus: call look_ahead(targets_of, num_batches)")
        if batch < self._start:
            self._begin()
        while batch >= self._end:
            self._next_part()

    def expected_counts(self, num: int, device: torch.device | str = "cpu") -> None:
        """Not the same from part to part."""

    def check_left(self, num: int, num_excluded: int) -> None:
        """As a law does, but a part of no more than `num` words is drawn whole; before the first part, nothing."""
        if self._end and (self.replacement or num < self.num_possible):
            super().check_left(num, num_excluded)

    def excludes_per_query(self, num: int) -> bool:
        """Also where parts are drawn whole."""
        return not self.shared or (num >= self.max_words and not self.replacement)

    def sample(
        self,
        queries: Float[Tensor, "M D"] | None,
        num: int,
        targets: Int[Tensor, "M ..."],
        hits: Hits = "keep",
        generator: torch.Generator | None = None,
    ) -> Draw:
        """See `ProposalSampler.sample`; without replacement, a part of no more than `num` words is drawn whole."""
        if self.replacement or num < self.num_possible:
            return super().sample(queries, num, targets, hits, generator)
        self.check(num, targets, hits)
        self._log_probability_of_targets(targets.reshape(len(targets), -1))
        return all_of(self.words_of_part().to(targets.device), targets, hits)

    def inverse_cdf(self, uniform: Float[Tensor, "..."]) -> Int[Tensor, "..."]:
        """Each word of the part is an equal part of [0, 1)."""
        words = self.words_of_part().to(uniform.device)
        return words[(uniform * len(words)).long().clamp(max=len(words) - 1)]

    def log_probability(self, ids: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
        """-log of the part's number of words, for those."""
        words = self.words_of_part().to(ids.device)
        is_word = words[torch.searchsorted(words, ids.contiguous()).clamp(max=len(words) - 1)] == ids
        return torch.where(is_word, -torch.tensor(float(len(words)), dtype=torch.float64).log(), -torch.inf)

    def _begin(self) -> None:
        self._start = self._end = 0
        self._words = torch.empty(0, dtype=torch.long)

    def _next_part(self) -> None:
        """Take as many more batches as their unique words allow."""
        self._start = self._end
        words = self._words_of(self._start)
        while len(words) <= self.max_words and self._end < self._start + self._num_batches:
            self._words, self._end = words, self._end + 1
            words = torch.cat([words, self._words_of(self._end)]).unique()

    def _words_of(self, batch: int) -> Int[Tensor, " w"]:
        assert self._targets_of is not None
        targets = self._targets_of(batch).flatten()
        self.check_targets(targets)
        words = targets[targets != NO_TARGET].unique()
        if len(words) > self.max_words:
            raise ValueError(
                f"batch {batch} has {len(words)} unique words, more than max_words={self.max_words}: raise it, or "
                "shrink the batches"
            )
        return words
