"""Buffers that keep their type."""

from collections.abc import Callable

from torch import Tensor, nn


class FixedDtype(nn.Module):
    """A module whose tensors move with the model around it, but keep their type when that is cast.

    `model.bfloat16()` would round the tables of a law, and it would draw by one law and declare another.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "FixedDtype":
        def moved_alone(tensor: Tensor) -> Tensor:
            changed = fn(tensor)
            return changed if changed.dtype == tensor.dtype else tensor.to(changed.device)

        return super()._apply(moved_alone, recurse)
