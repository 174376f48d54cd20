"""A sampler that returns every class, for the full objectives."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cpc.candidates.samplers.sampler import Draw, Request, Sampler
from cpc.config.argument_rules import Choices


class All(Sampler):
    """A sampler that returns every class once, without randomness; hits="exclude" equals hits="remove"."""

    removed_hits = ("remove", "exclude")

    def expected_counts(self, num: int, device: torch.device | str = "cpu") -> Float[Tensor, " n"]:  # noqa: D102
        return torch.ones(self.num_classes, dtype=torch.float64, device=device)

    def check_left(self, num: int, num_excluded: int) -> None:
        """Raise ValueError if `num` is not the number of classes."""
        Choices((self.num_classes,)).check("num_sampled of All", num)

    def _sample(self, request: Request) -> Draw:
        self.check_targets(request.targets)
        self.check_left(request.num, 0)
        return sample_all(torch.arange(self.num_classes, device=request.targets.device), request.targets)


def sample_all(ids: Int[Tensor, " m"], targets: Int[Tensor, "M T"]) -> Draw:
    """Return a sample of these classes for every query, with an expected count of 1; targets must be among them."""
    log_count = torch.zeros(len(ids), device=ids.device)
    return Draw(ids, log_count, log_count.new_zeros(targets.shape))
