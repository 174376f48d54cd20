"""Every class, for the full objectives."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cpc.candidates.samplers.sampler import Draw, Hits, Sampler, drop_hits


class All(Sampler):
    """Every class once, expected once: nothing is drawn. hits="exclude" and "remove" are the same here."""

    def expected_counts(self, num: int, device: torch.device | str = "cpu") -> Float[Tensor, " n"]:
        """1."""
        return torch.ones(self.num_classes, dtype=torch.float64, device=device)

    def check_left(self, num: int, num_excluded: int) -> None:
        """Raise ValueError on any number but that of the classes."""
        if num != self.num_classes:
            raise ValueError(f"num_sampled={num}: All draws every one of the {self.num_classes} classes; say so")

    def sample(
        self,
        queries: Float[Tensor, "M D"] | None,
        num: int,
        targets: Int[Tensor, "M ..."],
        hits: Hits = "keep",
        generator: torch.Generator | None = None,
    ) -> Draw:
        """See `Sampler.sample`; neither queries nor generator are used.

        Raises:
            ValueError: if `num` is not the number of classes, and as `Sampler.check`.
        """
        self.check(num, targets, hits)
        self.check_left(num, 0)
        return all_of(torch.arange(self.num_classes, device=targets.device), targets, hits)


def all_of(ids: Int[Tensor, " m"], targets: Int[Tensor, "M ..."], hits: Hits) -> Draw:
    """These classes for every query, each expected once; the targets are among them."""
    log_count = torch.zeros(len(ids), device=ids.device)
    if hits != "keep":
        log_count = drop_hits(ids, log_count, targets)
    return Draw(ids, log_count, torch.where(targets < 0, torch.inf, log_count.new_zeros(())))
