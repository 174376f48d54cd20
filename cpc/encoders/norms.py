"""The norms that trunks for patches may have: none of them lets patches see each other, as batch norm would."""

import math
from typing import Literal, get_args

from torch import nn

Norm = Literal["affine", "layer", "group", "none"]
_NORMS: tuple[str, ...] = get_args(Norm)
_MAX_GROUPS = 32


def check_norm(norm: str) -> None:
    """Raises a ValueError on a norm that is none of `Norm`."""
    if norm not in _NORMS:
        raise ValueError(
            f"norm={norm!r} is not one of {', '.join(map(repr, _NORMS))}; batch norm would let patches see each other"
        )


def group_norm(dim: int) -> nn.GroupNorm:
    """Of up to 32 groups, equally large."""
    return nn.GroupNorm(math.gcd(_MAX_GROUPS, dim), dim)
