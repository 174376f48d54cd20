"""The interface of samplers of candidates.

M queries, D dims, n classes, m sampled candidates, T targets per query.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, get_args

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cpc.config.argument_rules import Choices, Count, Range, checked
from cpc.data.tensors import FixedDtype, check_finite, check_range, check_tensor

Hits = Literal["keep", "remove", "exclude"]
HITS: tuple[str, ...] = get_args(Hits)
NO_TARGET = -1  # pads rows of `targets` with fewer than T targets


class Draw(NamedTuple):
    """A sample of candidates from the classes.

    Attributes:
        ids: `[m]` if all queries share the candidates, `[M, m]` otherwise; empty positions hold 0, a valid id.
        log_count_sampled: log of the expected count of each candidate in the sample. It has the shape of `ids`, or
            `[M, m]` if hits were removed from shared candidates; +inf for a removed hit or an empty position.
        log_count_targets: log of the expected count of each target in the same sample, in the shape of `targets`, for
            every treatment of hits.
    """

    ids: Tensor
    log_count_sampled: Tensor
    log_count_targets: Tensor

    def check(self, num_rows: int, num_candidates: int, meaning: str) -> None:
        """Raise ValueError on candidates that do not fit the rows, are out of range, or have an impossible log count.

        `meaning` is a noun in the plural for the things that are drawn.
        """
        ids, log_count, _ = self
        check_tensor("ids of the draw", ids, "integers", (num_rows, "m") if getattr(ids, "ndim", 1) > 1 else ("m",))
        is_shared = ids.ndim == getattr(log_count, "ndim", 1) == 1
        shape = ids.shape if is_shared else (num_rows, ids.shape[-1])
        check_tensor("log_count_sampled of the draw", log_count, "floats", shape)
        if not bool(log_count.min() > -torch.inf):  # a comparison with nan is False
            raise ValueError("log_count_sampled is -inf or nan: a class that was drawn is expected more than 0 times")
        check_range("ids of the draw", ids, 0, num_candidates, meaning)

    def check_hits(self, targets: Int[Tensor, "M T"], accepted: tuple[Hits, ...]) -> None:
        """Raise ValueError if accidental hits were not treated in an accepted way."""
        is_hit, is_gone = hits_among(self.ids, targets), self.log_count_sampled == torch.inf
        is_empty = (self.ids == 0) & is_gone  # class 0 may be a removed hit too
        is_empty = is_empty.flip(-1).cumprod(-1).flip(-1).bool()
        if self.ids.ndim < is_gone.ndim:  # a shared draw is padded for all rows
            is_empty &= is_gone.all(0)
        if "keep" not in accepted and bool((is_hit & ~is_gone).any()):
            problem = "holds a row's own target"
        elif accepted == ("keep",) and bool((is_hit & is_gone & ~is_empty).any()):
            problem = "lacks a row's own target, which was removed after it was drawn"
        else:
            return
        raise ValueError(f"the draw {problem}, but the objective accepts only hits={' or '.join(accepted)}")

    def target_counts(self, targets: Int[Tensor, "M T"]) -> Float[Tensor, "M T"]:
        """Return the log count of each target, +inf for a missing one; ValueError if that of a target is not finite."""
        counts = self.log_count_targets
        is_flat = getattr(counts, "ndim", 2) == 1 and targets.shape[1] == 1
        check_tensor("log_count_targets", counts, "floats", targets.shape[: 1 if is_flat else 2])
        is_target, counts = targets != NO_TARGET, counts.reshape(targets.shape)
        is_unknown = ~counts.isfinite() & is_target
        if bool(is_unknown.any()):
            row, column = is_unknown.nonzero()[0].tolist()
            found = f"log_count_targets of target {int(targets[row, column])} is {float(counts[row, column])}"
            raise ValueError(f"{found}: correction='posterior' needs a sampler that can draw every target")
        return torch.where(is_target, counts, torch.inf)


class Request(NamedTuple):
    """The arguments of `Sampler.sample`, with the targets as int64 `[M, T]`; a subclass checks their values."""

    queries: Tensor | None
    num: int
    targets: Tensor
    hits: Hits
    generator: torch.Generator | None


class Sampler(FixedDtype, ABC):
    """A sampler of classes with known expected counts; a subclass defines `_sample`.

    The state of a sampler is in buffers, so every checkpoint holds it. A cast of the model does not change the proposal
    distribution: see `FixedDtype`.

    Args:
        num_classes: n.
    """

    hits: tuple[str, ...] = HITS  # treatments of accidental hits that this sampler supports
    removed_hits: tuple[str, ...] = ("remove",)  # treatments that need no code in `_sample`
    needs_queries = False
    is_open = False  # whether the proposal still needs the frequencies of a corpus; see `follow`

    @checked
    def __init__(self, num_classes: Count) -> None:
        super().__init__()
        self.num_classes = num_classes

    def sample(
        self,
        queries: Float[Tensor, "M D"] | None,
        num: int,
        targets: Int[Tensor, "M ..."],
        hits: Hits = "keep",
        generator: torch.Generator | None = None,
    ) -> Draw:
        """Sample candidates for a batch of queries.

        Args:
            queries: query vectors; may be None if the proposal does not depend on them.
            num: m.
            targets: target classes of each query, padded with -1.
            hits: treatment of accidental hits: keep them, remove them after sampling (their log count becomes +inf), or
                exclude them before sampling.
            generator: source of random numbers, on the CPU.

        Raises:
            ValueError: if targets are out of range, the sampler does not support `hits`, or it cannot sample `num`
                candidates.
        """
        self.check_request(num, hits)
        check_tensor("targets", targets, "integers", ("M", "T") if getattr(targets, "ndim", 1) > 1 else ("M",))
        row_targets = targets.reshape(targets.shape[0], -1).long()
        ids, log_count, log_count_targets = self._sample(Request(queries, num, row_targets, hits, generator))
        if hits in self.removed_hits:
            log_count = drop_hits(ids, log_count, row_targets)
        return Draw(ids, log_count, log_count_targets.masked_fill(row_targets < 0, torch.inf).reshape(targets.shape))

    @abstractmethod
    def _sample(self, request: Request) -> Draw:
        """Sample candidates. Log counts of targets have the shape `[M, T]`; values of missing targets are arbitrary."""

    def look_ahead(self, targets_of: Callable[[int], Tensor], num_batches: int) -> None:
        """Set the order of the targets in training; most samplers do nothing.

        Args:
            targets_of: a function from the index of a batch, without upper limit, to all targets of this batch on all
                processes together, padded with -1.
            num_batches: batches in an epoch.
        """

    def set_step(self, batch: int) -> None:
        """Set the index of the next batch."""

    def expected_counts(self, num: int, device: torch.device | str = "cpu") -> Float[Tensor, " n"] | None:
        """Return the expected count of each class among `num` candidates; None if it differs by query or batch."""
        return None

    def follow(self, counts: Int[Tensor, " n"]) -> None:
        """Use the class frequencies of the training corpus, if the sampler was built without counts."""
        if self.is_open:
            self.set_counts(counts)

    def set_counts(self, counts_of_classes: Tensor | Sequence[float | int]) -> None:
        """Set the counts that define the proposal: finite, not negative and not all zero; few samplers have any."""
        raise ValueError(f"{type(self).__name__} has no counts: its proposal is not defined by them")

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        self.is_open = False  # a loaded sampler keeps its saved proposal

    def excludes_per_query(self, num: int) -> bool:
        """Return whether a sample of `num` candidates can exclude targets that differ between queries."""
        return True

    def check_left(self, num: int, num_excluded: int) -> None:
        """Raise ValueError if `num` candidates cannot be sampled while `num_excluded` classes are excluded."""

    def check_request(self, num: int, hits: str) -> None:
        """Check the arguments that are not tensors."""
        Choices(self.hits).check(f"{type(self).__name__}: hits", hits)
        Range(1).check("num_sampled", num)

    def check_targets(self, targets: Int[Tensor, "..."]) -> None:
        """Raise ValueError if a target is not the index of a class."""
        check_range("targets", targets, NO_TARGET, self.num_classes, "classes")


def counts_tensor(counts: Tensor | Sequence[float | int] | int) -> Tensor:
    """Return the counts as a tensor; equal counts if `counts` is the number of classes."""
    return torch.ones(max(counts, 0)) if isinstance(counts, int) else torch.as_tensor(counts)


def proportions(counts: Tensor | Sequence[float | int], num_classes: int, distortion: float = 1.0) -> Tensor:
    """Return q in float64, in proportion to count ** distortion; raise ValueError on counts that define no q."""
    weights = torch.as_tensor(counts, dtype=torch.float64)
    check_tensor("counts", weights, "floats", (num_classes,))
    check_finite("counts", weights, 0)
    weights = torch.where(weights > 0, weights**distortion, 0.0)
    if not 0 < float(weights.sum()) < torch.inf:
        raise ValueError(f"count ** {distortion} has the sum {float(weights.sum())}, which must be positive and finite")
    return weights / weights.sum()


def check_possible(targets: Int[Tensor, "M T"], log_q: Float[Tensor, "M T"], remedy: str) -> None:
    """Raise ValueError if a target has probability 0, so that its expected count would be 0."""
    if bool((log_q == -torch.inf).any()):
        target = int(targets[log_q == -torch.inf][0])
        raise ValueError(f"class {target} is a target, but the sampler never draws it: {remedy}")


def make_draw(
    ids: Int[Tensor, "R m"], log_count: Float[Tensor, "_ m"], log_count_targets: Float[Tensor, "M T"], shared: bool
) -> Draw:
    """Return a draw in PyTorch's default dtype, without the axis of rows if all queries share the candidates."""
    dtype = torch.get_default_dtype()
    ids, log_count = (ids[0], log_count[0]) if shared else (ids, log_count)
    return Draw(ids, log_count.to(dtype), log_count_targets.to(dtype))


def drop_hits(
    ids: Int[Tensor, "*M m"], log_count: Float[Tensor, "*M m"], targets: Int[Tensor, "M ..."]
) -> Float[Tensor, "M m"]:
    """Return the log counts, with +inf for each candidate that is a target of its query."""
    return torch.where(hits_among(ids, targets.reshape(len(targets), -1)), torch.inf, log_count)


def hits_among(ids: Int[Tensor, "*M N"], targets: Int[Tensor, "M T"]) -> Bool[Tensor, "M N"]:
    """Return the mask of the candidates that are targets of their row."""
    return (rearrange(ids, "... n -> ... 1 n") == rearrange(targets, "m t -> m t 1")).any(1)


def target_sets(targets: Int[Tensor, "M ..."], num_rows: int, num_classes: int) -> Int[Tensor, "M T"]:
    """Return targets as `[M, T]`; a ValueError if one is no class or repeats in its row, or a row has none."""
    check_tensor("targets", targets, "integers", (num_rows, "T") if getattr(targets, "ndim", 1) > 1 else (num_rows,))
    Range(1).check("the number of targets", targets.numel())
    targets = targets.reshape(num_rows, -1)
    check_range("targets", targets, NO_TARGET, num_classes, "classes")
    is_empty = (targets == NO_TARGET).all(1)
    if bool(is_empty.any()):
        raise ValueError(f"row {int(is_empty.nonzero()[0])} has no target: leave such rows out")
    ordered = targets.sort(1).values
    is_twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] != NO_TARGET)
    if bool(is_twice.any()):
        row, column = is_twice.nonzero()[0].tolist()
        raise ValueError(f"row {row} names class {int(ordered[row, column])} twice among its targets: name it once")
    return targets


def distinct(targets: Int[Tensor, "M T"]) -> Int[Tensor, "M T"]:
    """Return the distinct targets of each row in ascending order, padded with -1 at the front."""
    if targets.shape[1] < 2:
        return targets
    ascending = targets.sort(dim=1).values
    is_repeat = ascending[:, 1:] == ascending[:, :-1]
    return torch.cat([ascending[:, :1], ascending[:, 1:].masked_fill(is_repeat, NO_TARGET)], dim=1).sort(dim=1).values
