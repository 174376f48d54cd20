"""Parts of a corpus with few words each."""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from cpc.candidates.samplers.all import all_of
from cpc.candidates.samplers.law import LawSampler
from cpc.candidates.samplers.sampler import Draw, Hits


class Partition(LawSampler):
    """The vocabulary of the part of the corpus at hand (Jean et al. 2015, "On using very large target vocabulary").

    The corpus is cut, in the order in which training meets its targets, into consecutive parts with at most tau unique
    words each. Within a part q is uniform over its words and 0 elsewhere. With `num` >= tau every word of the part is a
    candidate once, expected once, whatever the part's size: the paper's method. A smaller `num` draws from the part.

    The training loop says where it is: `move_to(position)` before each batch, with the number of targets that come
    before it in the corpus as it was given here. Targets outside the part are an error, not a guess. Parts and place
    are buffers: a resumed run continues in its part.

    Z' never sees the words of other parts in this batch, so `importance` is not unbiased here, for any count.

    Args:
        num_classes: n.
        corpus: `[L]`, the targets of an epoch in the order of training; where batches are cut from parallel streams,
            those of the first batch, then those of the second.
        max_words: tau.
        targets_per_batch: parts end at multiples of it only, so that no batch lies in two.
        shared: see `LawSampler`, also for `replacement` and `counts`.

    Raises:
        ValueError: on an empty corpus, ids out of range, or a batch with more than `max_words` unique words.
    """

    remedy = "call move_to(position of the batch in the corpus) before each batch"
    words: Tensor
    first_word: Tensor
    ends: Tensor
    part: Tensor

    def __init__(
        self,
        num_classes: int,
        corpus: Int[Tensor, " L"],
        max_words: int,
        targets_per_batch: int = 1,
        *,
        shared: bool = True,
        replacement: bool = False,
        counts: str | None = None,
    ) -> None:
        super().__init__(num_classes, shared=shared, replacement=replacement, counts=counts)
        if corpus.numel() == 0:
            raise ValueError("an empty corpus has no parts")
        if not 0 <= int(corpus.min()) <= int(corpus.max()) < num_classes:
            raise ValueError(
                f"the corpus holds ids from {int(corpus.min())} to {int(corpus.max())}; {num_classes} classes end at "
                f"{num_classes - 1}"
            )
        if targets_per_batch < 1:
            raise ValueError(f"targets_per_batch={targets_per_batch} must be at least 1")
        self.max_words = max_words
        tokens = corpus.cpu().numpy()
        ends = part_ends(tokens, max_words, targets_per_batch)
        words = [np.unique(part) for part in np.split(tokens, ends[:-1])]
        self.register_buffer("words", torch.from_numpy(np.concatenate(words)).long())
        self.register_buffer("first_word", torch.tensor([0, *map(len, words)]).cumsum(0))
        self.register_buffer("ends", torch.from_numpy(ends))
        self.register_buffer("part", torch.tensor(0))

    @property
    def num_parts(self) -> int:
        """Into how many parts the corpus was cut."""
        return len(self.ends)

    @property
    def num_possible(self) -> int:
        """How many words the part at hand has."""
        return len(self.words_of_part())

    def words_of_part(self) -> Int[Tensor, " m"]:
        """The words of the part at hand, in order."""
        first, last = self.first_word[self.part], self.first_word[self.part + 1]
        return self.words[first:last]

    def move_to(self, position: int) -> None:
        """Go to the part that holds the target at this place of the corpus.

        Raises:
            ValueError: if the corpus ends before it.
        """
        if not 0 <= position < int(self.ends[-1]):
            raise ValueError(f"position={position}: the corpus has {int(self.ends[-1])} targets")
        self.part.copy_((self.ends <= position).sum())

    def expected_counts(self, num: int, device: torch.device | str = "cpu") -> None:
        """Not the same from part to part."""

    def check_left(self, num: int, num_excluded: int) -> None:
        """As a law does, but a part of no more than `num` words is drawn whole.

        Raises:
            ValueError: as it does.
        """
        if self.replacement or num < self.num_possible:
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
        """See `LawSampler.sample`; without replacement, a part of no more than `num` words is drawn whole."""
        if self.replacement or num < self.num_possible:
            return super().sample(queries, num, targets, hits, generator)
        self.check(num, targets, hits)
        self._log_probability_of_targets(targets.reshape(len(targets), -1))
        return all_of(self.words_of_part(), targets, hits)

    def from_uniform(self, uniform: Float[Tensor, "..."]) -> Int[Tensor, "..."]:
        """Each word of the part is an equal part of [0, 1)."""
        words = self.words_of_part()
        return words[(uniform * len(words)).long().clamp(max=len(words) - 1)]

    def log_probability(self, ids: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
        """-log of the part's number of words, for those."""
        words = self.words_of_part()
        is_word = words[torch.searchsorted(words, ids.contiguous()).clamp(max=len(words) - 1)] == ids
        return torch.where(is_word, -torch.tensor(float(len(words)), dtype=torch.float64).log(), -torch.inf)


def part_ends(tokens: np.ndarray, max_words: int, batch: int) -> np.ndarray:
    """Where each part of the corpus ends: as late as its unique words allow, after a whole number of batches."""
    previous = np.full(len(tokens), -1)  # where a token last came before
    order = np.argsort(tokens, kind="stable")
    again = tokens[order[1:]] == tokens[order[:-1]]
    previous[order[1:][again]] = order[:-1][again]

    ends, start = [], 0
    while start < len(tokens):
        length = max(2 * max_words, batch)
        while True:  # windows that double: a part is read a constant number of times, not the whole rest
            num_words = (previous[start : start + length] < start).cumsum()
            if num_words[-1] > max_words or start + length >= len(tokens):
                break
            length *= 2
        end = len(tokens)
        if num_words[-1] > max_words:
            end = start + int(np.searchsorted(num_words, max_words, side="right")) // batch * batch
        if end == start:
            raise ValueError(
                f"the batch of {batch} targets at {start} has {num_words[min(batch, len(num_words)) - 1]} unique "
                f"words, more than max_words={max_words}: raise it or shrink the batches"
            )
        ends.append(end)
        start = end
    return np.array(ends)
