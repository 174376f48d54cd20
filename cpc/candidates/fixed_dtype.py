"""A module whose buffers keep their dtype when a model is cast."""

from collections.abc import Callable

from torch import Tensor, nn


class FixedDtype(nn.Module):
    """A module whose tensors move to another device with the model, but keep their dtype when the model is cast.

    Without it `model.bfloat16()` would round the tables of a sampler: the proposal that it samples from would no longer
    be the proposal whose log probabilities it returns.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "FixedDtype":
        def move_only(tensor: Tensor) -> Tensor:
            changed = fn(tensor)
            return changed if changed.dtype == tensor.dtype else tensor.to(changed.device)

        return super()._apply(move_only, recurse)
