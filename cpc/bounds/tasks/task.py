"""What a task of known information is.

N pairs, M rows, Dx and Dy dimensions.
"""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor


@runtime_checkable
class Task(Protocol):
    """Pairs (x, y) of known mutual information, and the critic that knows everything."""

    @property
    def dim(self) -> int:
        """Dimensions that carry information; x and y may be wider."""

    @property
    def mutual_information_nats(self) -> float:
        """I(x; y)."""

    def sample(self, num_pairs: int, generator: torch.Generator) -> tuple[Float[Tensor, "N Dx"], Float[Tensor, "N Dy"]]:
        """Independent pairs, float64."""

    def log_density_ratio(self, x: Float[Tensor, "M Dx"], y: Float[Tensor, "N Dy"]) -> Float[Tensor, "M N"]:
        """Log p(y | x) / p(y) of every x with every y: the best scores there are."""


def check_reach(name: str, information_nats: int | float, dim: int, low: int | float, high: int | float) -> None:
    """Refuse an information that the task does not reach in this many dimensions.

    Raises:
        ValueError: naming what it reaches.
    """
    if dim < 1:
        raise ValueError(f"dim={dim} must be at least 1")
    if not low < information_nats < high:
        raise ValueError(
            f"mi={information_nats:g} is out of reach of task {name!r} at dim={dim}, which goes from {low:.3g} to "
            f"{high:.3g} nats: change mi or dim"
        )
