"""A sampler over the words of the current part of a corpus."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cpc.candidates.samplers.all import sample_all
from cpc.candidates.samplers.proposal import Counts, ProposalSampler
from cpc.candidates.samplers.sampler import NO_TARGET, Draw, Request, drop_hits
from cpc.config.argument_rules import Range


class Partition(ProposalSampler):
    """A sampler over the vocabulary of the current part of the corpus.

    The method is that of Jean et al. 2015, "On using very large target vocabulary". The corpus is cut, in the order of
    training, into consecutive parts of whole batches with at most tau distinct words each. Within a part q is uniform
    over its words and 0 elsewhere. With `num` >= tau every word of the part is a candidate once, as in the paper. A
    smaller `num` samples from the part.

    Call `look_ahead` once before training, and `set_step(batch)` before each batch. `cpc pretrain` on text makes both
    calls. Targets outside the part raise an error. Parts depend only on the corpus and on tau, so no state is saved: a
    resumed run finds its part again.

    The estimate Z' of a batch never includes the words of other parts, so `importance` is biased for all `counts`.

    Args:
        num_classes: n.
        max_words: tau.
        shared: see `ProposalSampler`, also for `replacement` and `counts`.
    """

    remedy = "call set_step(index of the batch) before each batch"

    def __init__(
        self,
        num_classes: int,
        max_words: int,
        *,
        shared: bool = True,
        replacement: bool = False,
        counts: Counts | None = None,
    ) -> None:
        super().__init__(num_classes, shared=shared, replacement=replacement, counts=counts)
        Range(1, num_classes - 1).check("`max_words`", max_words)
        self.max_words = max_words
        self._batch_targets: Callable[[int], Tensor] | None = None
        self._num_batches = 0
        self._reset()

    @property
    def num_possible(self) -> int:
        """The number of words in the current part."""
        return len(self.words_of_part())

    @property
    def part(self) -> tuple[int, int]:
        """The index of the first batch of the current part, and the index of the first batch after it."""
        return self._start, self._end

    def words_of_part(self) -> Int[Tensor, " m"]:
        """Return the words of the current part in ascending order; a ValueError before `look_ahead` and `set_step`."""
        if not self._end:
            raise ValueError("Partition has no current part yet: call look_ahead, then set_step(batch)")
        return self._words

    def look_ahead(self, targets_of: Callable[[int], Tensor], num_batches: int) -> None:
        """Set the order of the targets: at most tau distinct words a batch. No part is longer than an epoch."""
        Range(1).check("num_batches", num_batches)
        self._batch_targets, self._num_batches = targets_of, num_batches
        self._reset()
        for batch in range(num_batches):
            self._batch_words(batch)

    def set_step(self, batch: int) -> None:
        """Move to the part that contains the batch with this index; a ValueError before `look_ahead`."""
        if batch < self._start:
            self._reset()
        while batch >= self._end:
            self._next_part()

    def expected_counts(self, num: int, device: torch.device | str = "cpu") -> None:
        """Return None: counts differ from part to part."""

    def check_left(self, num: int, num_excluded: int) -> None:
        """Raise ValueError if too few words remain; parts of at most `num` words are taken whole and always valid."""
        if self._end and (self.replacement or num < self.num_possible):
            super().check_left(num, num_excluded)

    def excludes_per_query(self, num: int) -> bool:
        """Return True if candidates are not shared, or every part is taken whole."""
        return not self.shared or (num >= self.max_words and not self.replacement)

    def _sample(self, request: Request) -> Draw:
        """Sample candidates; without replacement, a part of at most `num` words is taken whole."""
        if self.replacement or request.num < self.num_possible:
            return super()._sample(request)
        self._target_log_probability(request.targets)
        ids, log_count, log_count_targets = sample_all(self.words_of_part().to(request.targets.device), request.targets)
        if request.hits == "exclude":
            log_count = drop_hits(ids, log_count, request.targets)
        return Draw(ids, log_count, log_count_targets)

    def inverse_cdf(self, uniform: Float[Tensor, "..."]) -> Int[Tensor, "..."]:  # noqa: D102
        words = self.words_of_part().to(uniform.device)
        return words[(uniform * len(words)).long().clamp(max=len(words) - 1)]

    def log_probability(self, ids: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Return -log of the number of words of the part; -inf for other words."""
        words = self.words_of_part().to(ids.device)
        is_word = words[torch.searchsorted(words, ids.contiguous()).clamp(max=len(words) - 1)] == ids
        return torch.where(is_word, -torch.tensor(float(len(words)), dtype=torch.float64).log(), -torch.inf)

    def _reset(self) -> None:
        self._start = self._end = 0
        self._words = torch.empty(0, dtype=torch.long)

    def _next_part(self) -> None:
        """Start the next part, with as many batches as `max_words` distinct words allow."""
        self._start = self._end
        words = self._batch_words(self._start)
        while len(words) <= self.max_words and self._end < self._start + self._num_batches:
            self._words, self._end = words, self._end + 1
            words = torch.cat([words, self._batch_words(self._end)]).unique()

    def _batch_words(self, batch: int) -> Int[Tensor, " w"]:
        if self._batch_targets is None:
            raise ValueError("Partition has no corpus yet: call look_ahead(targets_of, num_batches)")
        targets = self._batch_targets(batch).flatten()
        self.check_targets(targets)
        words = targets[targets != NO_TARGET].unique()
        Range(most=self.max_words).check(f"batch {batch} and `max_words`: its number of words", len(words))
        return words
