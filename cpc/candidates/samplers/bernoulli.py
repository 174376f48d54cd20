"""Independent inclusion."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cpc.candidates.samplers.sampler import Draw, Hits, Sampler, counts_given, drop_hits


class Bernoulli(Sampler):
    """Each class is in or out by a coin of its own. Only for this draw the posterior correction is exact.

    The chance of class i is min(1, c q_i), with c such that `num` candidates are expected; the number that comes
    varies. Coins are independent, so excluding the targets before the draw is the same as removing them afterwards,
    for shared candidates too. A draw costs n coins, or M n where candidates are not shared.

    Args:
        weights: `[n]`, proportional to q; 0 for a class that is never drawn. Or n alone: a law left open,
            all the same until `set_counts` or `follow` (which pretraining on text calls).
        shared: one draw serves all queries of a batch; else each query has its own. Rows that are shorter than the
            widest end in class 0 with a log count of +inf, as does a draw of nothing.

    Raises:
        ValueError: on weights that are negative, not finite or all zero.
    """

    q: Tensor

    def __init__(self, weights: Tensor | Sequence[float | int] | int, *, shared: bool = True) -> None:
        given = counts_given(weights)
        super().__init__(given.numel())
        self.weights = self.num_classes  # what builds it again: the law itself is in the buffer
        self.shared = shared
        self.register_buffer("q", None)
        self.set_counts(given)
        self.is_open = isinstance(weights, int)

    def set_counts(self, counts_of_classes: Tensor | Sequence[float | int]) -> None:
        """Include classes in proportion to these counts from now on."""
        weights = torch.as_tensor(counts_of_classes, dtype=torch.float64)
        total = float(weights.sum())
        if weights.shape != (self.num_classes,) or not bool((weights >= 0).all()) or not 0 < total < torch.inf:
            raise ValueError(
                f"weights of {tuple(weights.shape)} with sum {total} and minimum {float(weights.min())}: one finite "
                f"weight for each of {self.num_classes} classes is needed, none below 0 and one above"
            )
        self.q = weights / total
        self.is_open = False

    def expected_counts(self, num: int, device: torch.device | str = "cpu") -> Float[Tensor, " n"]:
        """The chance that each class is among the candidates if `num` are expected."""
        self.check_left(num, 0)
        is_certain = torch.zeros_like(self.q, dtype=torch.bool)
        while int(is_certain.sum()) < num:
            chance = (num - is_certain.sum()) / self.q[~is_certain].sum() * self.q
            would_be = is_certain | (chance >= 1)
            if torch.equal(would_be, is_certain):
                return torch.where(is_certain, 1.0, chance).to(device)
            is_certain = would_be
        return is_certain.double().to(device)

    def check_left(self, num: int, num_excluded: int) -> None:
        """Raise ValueError if fewer than `num` classes have a positive weight; excluded ones still have coins."""
        num_possible = int((self.q > 0).sum())
        if num > num_possible:
            raise ValueError(
                f"num_sampled={num}, but {num_possible} of {self.num_classes} classes have a positive weight, and each "
                "comes at most once; lower num_sampled"
            )

    def sample(
        self,
        queries: Float[Tensor, "M D"] | None,
        num: int,
        targets: Int[Tensor, "M ..."],
        hits: Hits = "keep",
        generator: torch.Generator | None = None,
    ) -> Draw:
        """See `Sampler.sample`; `num` is the expected number, and `queries` are not looked at.

        Raises:
            ValueError: as `check` and `check_left`, and on a target that is never drawn.
        """
        self.check(num, targets, hits)
        inclusion = self.expected_counts(num, self.q.device)
        log_inclusion = inclusion.log()
        log_count_targets = torch.where(targets < 0, torch.inf, log_inclusion[targets.clamp(min=0)])
        if bool((log_count_targets == -torch.inf).any()):
            never = int(targets[log_count_targets == -torch.inf][0])
            raise ValueError(f"class {never} is a target, but its weight is 0: it would be expected 0 times")

        num_rows = 1 if self.shared else len(targets)
        coins = torch.rand(num_rows, self.num_classes, generator=generator, dtype=torch.float64)
        is_in = coins.to(targets.device) < inclusion
        row, drawn = is_in.nonzero(as_tuple=True)
        place = is_in.cumsum(1)[row, drawn] - 1
        widest = max(1, int(is_in.sum(1).max()))
        ids = targets.new_zeros(num_rows, widest)
        log_count = log_inclusion.new_full((num_rows, widest), torch.inf)
        ids[row, place], log_count[row, place] = drawn, log_inclusion[drawn]

        dtype = torch.get_default_dtype()
        ids, log_count = (ids[0], log_count[0].to(dtype)) if self.shared else (ids, log_count.to(dtype))
        if hits != "keep":
            log_count = drop_hits(ids, log_count, targets)
        return Draw(ids, log_count, log_count_targets.to(dtype))
