"""Tasks whose variables were bent: information stays, a critic's work grows.

N pairs, M rows, D dimensions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from einops import rearrange, reduce
from jaxtyping import Float
from torch import Tensor

from cpc.bounds.tasks.task import Task

SPIRAL_TURN = 1.0  # radians at the mean of |x|^2 / D


class Bend(NamedTuple):
    """An invertible map of vectors `[N, D]` and its inverse."""

    forward: Callable[[Tensor], Tensor]
    inverse: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Transformed:
    """A task whose x and y were each mapped by an invertible function.

    Mutual information does not change under invertible maps of either variable (Kraskov et al. 2004,
    arXiv:cond-mat/0305641, appendix), nor does the density ratio: the best critic is the base task's, on the base
    task's variables.

    Attributes:
        base: the task that is bent.
        of_x: what is done to x; None: nothing.
        of_y: what is done to y; None: nothing.
    """

    base: Task
    of_x: Bend | None
    of_y: Bend | None

    @property
    def dim(self) -> int:
        """Of the base."""
        return self.base.dim

    @property
    def mutual_information_nats(self) -> float:
        """Of the base."""
        return self.base.mutual_information_nats

    def sample(self, num_pairs: int, generator: torch.Generator) -> tuple[Float[Tensor, "N D"], Float[Tensor, "N D"]]:
        """Independent pairs."""
        x, y = self.base.sample(num_pairs, generator)
        return self.of_x.forward(x) if self.of_x else x, self.of_y.forward(y) if self.of_y else y

    def log_density_ratio(self, x: Float[Tensor, "M D"], y: Float[Tensor, "N D"]) -> Float[Tensor, "M N"]:
        """That of the base, at the inverse images."""
        return self.base.log_density_ratio(
            self.of_x.inverse(x) if self.of_x else x, self.of_y.inverse(y) if self.of_y else y
        )


def signed_power(exponent: int | float) -> Bend:
    """X -> sign(x) |x|^exponent: 3 is the cubic of Poole et al. 2019, 3/2 the half-cube of Czyz et al. 2023."""

    def power(values: Tensor, exponent: int | float) -> Tensor:
        return values.sign() * values.abs() ** exponent

    return Bend(lambda x: power(x, exponent), lambda x: power(x, 1 / exponent))


def spiral(turn: int | float = SPIRAL_TURN) -> Bend:
    """Turns each pair of coordinates by an angle that grows with |x|^2 (the spiral of Czyz et al. 2023, appendix B).

    The length of x stays, so the same angle turns back. A coordinate left over in odd dimensions is not turned.

    Args:
        turn: angle in radians where |x|^2 / D is 1, its mean under standard normal x.
    """

    def turned(values: Tensor, turn: int | float) -> Tensor:
        num_pairs = values.shape[1] // 2
        angle = turn * reduce(values.square(), "n d -> n 1", "mean")
        first, second = rearrange(values[:, : 2 * num_pairs], "n (two p) -> two n p", two=2)
        rotated = [first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()]
        return torch.cat([*rotated, values[:, 2 * num_pairs :]], 1)

    return Bend(lambda x: turned(x, turn), lambda x: turned(x, -turn))


def inverse_sinh() -> Bend:
    """X -> asinh x, which brings heavy tails in (Czyz et al. 2023)."""
    return Bend(torch.asinh, torch.sinh)
