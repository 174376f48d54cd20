"""A sampler that returns every class, for the full objectives."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cpc.candidates.samplers.sampler import Draw, Hits, Sampler, drop_hits


class All(Sampler):
    """A sampler that returns every class once, without randomness; hits="exclude" equals hits="remove"."""

    def expected_counts(self, num: int, device: torch.device | str = "cpu") -> Float[Tensor, " n"]:  # noqa: D102
        return torch.ones(self.num_classes, dtype=torch.float64, device=device)

    def check_left(self, num: int, num_excluded: int) -> None:
        """Raise ValueError if `num` is not the number of classes."""
        if num != self.num_classes:
            raise ValueError(
                f"num_sampled={num}: All draws every one of the {self.num_classes} classes; pass that number"
            )

    def sample(
        self,
        queries: Float[Tensor, "M D"] | None,
        num: int,
        targets: Int[Tensor, "M ..."],
        hits: Hits = "keep",
        generator: torch.Generator | None = None,
    ) -> Draw:
        """Return all classes; see `Sampler.sample`. Queries and generator are ignored.

        Raises:
            ValueError: if `num` is not the number of classes, and as `Sampler.check`.
        """
        self.check(num, targets, hits)
        self.check_left(num, 0)
        return sample_all(torch.arange(self.num_classes, device=targets.device), targets, hits)


def sample_all(ids: Int[Tensor, " m"], targets: Int[Tensor, "M ..."], hits: Hits) -> Draw:
    """Return a sample of these classes for every query, each expected once; targets must be among the classes."""
    log_count = torch.zeros(len(ids), device=ids.device)
    if hits != "keep":
        log_count = drop_hits(ids, log_count, targets)
    return Draw(ids, log_count, torch.where(targets < 0, torch.inf, log_count.new_zeros(())))
