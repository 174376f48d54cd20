"""Invertible maps of vectors, which change neither mutual information nor density ratio.

N vectors, D dimensions.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from einops import rearrange, reduce
from torch import Tensor

SPIRAL_TURN = 1.0  # angle in radians at the mean of |x|^2 / D


class Bijection(NamedTuple):
    """An invertible map of vectors `[N, D]` and its inverse."""

    forward: Callable[[Tensor], Tensor]
    inverse: Callable[[Tensor], Tensor]


def signed_power(exponent: int | float) -> Bijection:
    """Return the map x -> sign(x) |x|^exponent.

    Exponent 3 is the cubic of Poole et al. 2019, 3/2 the half-cube of Czyz et al. 2023.
    """

    def power(values: Tensor, exponent: int | float) -> Tensor:
        return values.sign() * values.abs() ** exponent

    return Bijection(lambda x: power(x, exponent), lambda x: power(x, 1 / exponent))


def spiral(turn: int | float = SPIRAL_TURN) -> Bijection:
    """Return the map that rotates pairs of coordinates by an angle proportional to |x|^2.

    This is the spiral of Czyz et al. 2023, appendix B. The length of x does not change, so the inverse rotates back by
    the same angle. If D is odd, the last coordinate does not change.

    Args:
        turn: angle in radians where |x|^2 / D is 1, its mean under standard normal x.
    """

    def rotate(values: Tensor, turn: int | float) -> Tensor:
        num_pairs = values.shape[1] // 2
        angle = turn * reduce(values.square(), "n d -> n 1", "mean")
        first, second = rearrange(values[:, : 2 * num_pairs], "n (two p) -> two n p", two=2)
        rotated = [first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()]
        return torch.cat([*rotated, values[:, 2 * num_pairs :]], 1)

    return Bijection(lambda x: rotate(x, turn), lambda x: rotate(x, -turn))


IDENTITY = Bijection(lambda x: x, lambda x: x)
INVERSE_SINH = Bijection(torch.asinh, torch.sinh)  # shortens heavy tails (Czyz et al. 2023)
