"""What every sampler of candidates promises.

M queries, D dims, n classes, m candidates drawn, T targets per query.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, get_args

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from cpc.candidates.fixed_dtype import FixedDtype
from cpc.data.tensors import check_range, check_tensor

Hits = Literal["keep", "remove", "exclude"]
HITS: tuple[str, ...] = get_args(Hits)
NO_TARGET = -1  # fills up rows of `targets` that have fewer than T


class Draw(NamedTuple):
    """Candidates drawn from a pool of classes.

    Attributes:
        ids: `[m]` where all queries share them, `[M, m]` otherwise; a valid id, 0, in a place that was left empty.
        log_count_sampled: log of how often each is expected in the drawn set, of the shape of `ids`, or `[M, m]` where
            hits were removed from shared ones: +inf for a removed hit, or for a place that was left empty.
        log_count_targets: of the shape of `targets`: how often each target is expected in the same draw, whatever
            became of its hits.
    """

    ids: Tensor
    log_count_sampled: Tensor
    log_count_targets: Tensor


class Sampler(FixedDtype, ABC):
    """Draws classes with known expected counts; its state is in buffers, and so in every checkpoint.

    A cast of the model leaves the law as it is: see `FixedDtype`.

    Args:
        num_classes: n.

    Raises:
        ValueError: if there is no class.
    """

    hits: tuple[str, ...] = HITS  # those that it can be asked for
    needs_queries = False
    is_open = False  # the law waits for the frequencies of a corpus: see `follow`

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        if num_classes < 1:
            raise ValueError(f"num_classes={num_classes}: there is nothing to draw from; it must be at least 1")
        self.num_classes = num_classes

    @abstractmethod
    def sample(
        self,
        queries: Float[Tensor, "M D"] | None,
        num: int,
        targets: Int[Tensor, "M ..."],
        hits: Hits = "keep",
        generator: torch.Generator | None = None,
    ) -> Draw:
        """Draw candidates for a batch of queries.

        Args:
            queries: what the candidates are drawn for; None where the law does not depend on it.
            num: m.
            targets: the classes of each query, -1 where a row has fewer than the widest.
            hits: a drawn target is kept, removed after the draw (its count becomes +inf), or excluded before it.
            generator: source of the draws, on the CPU.

        Raises:
            ValueError: on targets out of range, hits that this sampler does not offer, or a `num` that it cannot draw.
        """

    def look_ahead(self, targets_of: Callable[[int], Tensor], num_batches: int) -> None:
        """Learn in which order training meets its targets, where the law depends on it. Most do not.

        Args:
            targets_of: all targets of a batch by its number, on all processes together, -1 for none; without end.
            num_batches: of an epoch.

        Raises:
            ValueError: if the law cannot serve one of the batches.
        """

    def set_step(self, batch: int) -> None:
        """Learn which batch comes next, by its number."""

    def expected_counts(self, num: int, device: torch.device | str = "cpu") -> Float[Tensor, " n"] | None:
        """How often each class is expected among `num` drawn; None where queries or batches differ in it."""
        return None

    def follow(self, counts: Int[Tensor, " n"]) -> None:
        """Take the frequencies of the corpus trained on, if the law was left open. Most laws are not."""
        if self.is_open:
            self.set_counts(counts)

    def set_counts(self, counts_of_classes: Tensor | Sequence[float | int]) -> None:
        """Follow these counts from now on; only for laws that are made of counts.

        Raises:
            ValueError: on counts that are negative, not finite or all zero, or not one for each class.
        """
        raise ValueError(f"{type(self).__name__} is not made of counts")

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        self.is_open = False  # a sampler that is built again is open: the law that was saved stays

    def excludes_per_query(self, num: int) -> bool:
        """Whether such a draw can exclude each query's own targets, where they differ."""
        return True

    def check_left(self, num: int, num_excluded: int) -> None:
        """Raise ValueError if `num` cannot be drawn where so many classes are excluded for a query."""

    def check(self, num: int, targets: Int[Tensor, "M ..."], hits: str) -> None:
        """Raise ValueError on what no sampler can do."""
        self.check_request(num, hits)
        self.check_kind(targets)
        self.check_targets(targets)

    def check_request(self, num: int, hits: str) -> None:
        """The part of `check` that looks at no tensor."""
        if hits not in HITS:
            raise ValueError(f"hits={hits!r} is not one of {', '.join(HITS)}")
        if hits not in self.hits:
            raise ValueError(f"hits={hits!r}: {type(self).__name__} offers {', '.join(self.hits)}")
        if num < 1:
            raise ValueError(f"num_sampled={num} must be at least 1")

    def check_kind(self, targets: Int[Tensor, "M ..."]) -> None:
        """Raise ValueError if targets are no tensor of integers `[M]` or `[M, T]`; their values are not read."""
        check_tensor("targets", targets, "integers", ("M", "T") if getattr(targets, "ndim", 1) > 1 else ("M",))

    def check_targets(self, targets: Int[Tensor, "M ..."]) -> None:
        """Raise ValueError if a target is no class."""
        check_range("targets", targets, NO_TARGET, self.num_classes, "classes")


def counts_given(counts: Tensor | Sequence[float | int] | int) -> Tensor:
    """The counts that a law is made of; all the same if only the number of classes is given."""
    return torch.ones(max(counts, 0)) if isinstance(counts, int) else torch.as_tensor(counts)


def drop_hits(
    ids: Int[Tensor, "*M m"], log_count: Float[Tensor, "*M m"], targets: Int[Tensor, "M ..."]
) -> Float[Tensor, "M m"]:
    """The counts with +inf wherever a candidate is one of its query's targets."""
    one_each = rearrange(ids, "... m -> ... 1 m")
    of_row = targets.reshape(len(targets), -1, 1)
    is_hit = (one_each == of_row).any(-2)
    return torch.where(is_hit, torch.inf, log_count)


def distinct(targets: Int[Tensor, "M T"]) -> Int[Tensor, "M T"]:
    """The targets of each row once each, in ascending order, after as many -1 as are needed."""
    if targets.shape[1] < 2:
        return targets
    ascending = targets.sort(dim=1).values
    again = ascending[:, 1:] == ascending[:, :-1]
    return torch.cat([ascending[:, :1], ascending[:, 1:].masked_fill(again, NO_TARGET)], dim=1).sort(dim=1).values
