"""A sampler that includes each class independently of the others."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from cpc.candidates.samplers.sampler import (
    Draw,
    Request,
    Sampler,
    check_possible,
    counts_tensor,
    make_draw,
    proportions,
)
from cpc.config.argument_rules import Range


class Bernoulli(Sampler):
    """A sampler that includes each class independently; with it the posterior correction is exact.

    Class i is included with probability min(1, c q_i), where c makes the expected number of candidates `num`; the
    actual number varies. Classes are independent, so excluding the targets before sampling equals removing them
    afterwards, also for shared candidates. A sample takes n random numbers, or M n if candidates are not shared. A
    target of weight 0 is an error.

    Args:
        weights: `[n]`, proportional to q; 0 for a class that is never sampled. An integer n gives equal weights until
            `set_counts` or `follow` is called, as pretraining on text does.
        shared: whether one sample serves all queries of a batch; otherwise each query has a separate sample. Short
            samples are padded with class 0 and a log count of +inf.
    """

    removed_hits = ("remove", "exclude")

    def __init__(self, weights: Tensor | Sequence[float | int] | int, *, shared: bool = True) -> None:
        counts = counts_tensor(weights)
        super().__init__(counts.numel())
        self.weights = self.num_classes  # enough to rebuild the sampler from a checkpoint, whose buffer has q
        self.shared = shared
        self.set_counts(counts)
        self.is_open = isinstance(weights, int)

    def set_counts(self, counts_of_classes: Tensor | Sequence[float | int]) -> None:
        """Set q in proportion to these counts."""
        self.q = nn.Buffer(proportions(counts_of_classes, self.num_classes))
        self.is_open = False

    def expected_counts(self, num: int, device: torch.device | str = "cpu") -> Float[Tensor, " n"]:
        """Return the inclusion probability of each class if `num` candidates are expected."""
        self.check_left(num, 0)
        is_certain = torch.zeros_like(self.q, dtype=torch.bool)
        while int(is_certain.sum()) < num:
            probability = (num - is_certain.sum()) / self.q[~is_certain].sum() * self.q
            is_certain_next = is_certain | (probability >= 1)
            if torch.equal(is_certain_next, is_certain):
                return torch.where(is_certain, 1.0, probability).to(device)
            is_certain = is_certain_next
        return is_certain.double().to(device)

    def check_left(self, num: int, num_excluded: int) -> None:
        """Raise ValueError if fewer than `num` classes have a positive weight; excluded classes count too."""
        Range(1, int((self.q > 0).sum())).check("num_sampled", num)

    def _sample(self, request: Request) -> Draw:
        targets = request.targets
        self.check_targets(targets)
        inclusion = self.expected_counts(request.num, self.q.device)
        log_inclusion = inclusion.log()
        log_count_targets = torch.where(targets < 0, torch.inf, log_inclusion[targets.clamp(min=0)])
        check_possible(targets, log_count_targets, "give it a weight")

        num_rows = 1 if self.shared else len(targets)
        uniform = torch.rand(num_rows, self.num_classes, generator=request.generator, dtype=torch.float64)
        is_in = uniform.to(targets.device) < inclusion
        row, sampled = is_in.nonzero(as_tuple=True)
        column = is_in.cumsum(1)[row, sampled] - 1
        widest = max(1, int(is_in.sum(1).max()))
        ids = targets.new_zeros(num_rows, widest)
        log_count = log_inclusion.new_full((num_rows, widest), torch.inf)
        ids[row, column], log_count[row, column] = sampled, log_inclusion[sampled]
        return make_draw(ids, log_count, log_count_targets, self.shared)
