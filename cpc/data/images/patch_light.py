"""AutoAugment's changes of light and colour (Cubuk et al. 2019, arXiv:1805.09501), with an amount for each patch.

n patches, C channels, P patch side. Pixels lie in [0, 1] before and after; amounts lie in [-1, 1). Operations follow
Pillow's definitions, as in torchvision, which takes one amount for all patches. Two operations are left out: inversion,
which is solarisation at amount -1, and equalisation, which in Pillow's definition does not change patches of fewer than
256 pixels.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from einops import rearrange, reduce
from jaxtyping import Float
from torch import Tensor

_STRENGTH = 0.6  # brightness, contrast, colour and sharpness are multiplied by 1 - this to 1 + this
_FEWEST_BITS, _MOST_BITS = 2, 4  # bits of a pixel after posterisation
_LEVEL = 1 / 255  # difference of neighbouring levels in uint8 images
_GREY = (0.299, 0.587, 0.114)  # weights of red, green and blue (ITU-R 601-2)


def change_light(
    patches: Float[Tensor, "n C P P"], which: Float[Tensor, " n"], amount: Float[Tensor, " n"]
) -> Float[Tensor, "n C P P"]:
    """Change every patch by one of `OPERATIONS`.

    Args:
        patches: pixels.
        which: number that selects the operation: equal parts of [0, 1) stand for the entries of `OPERATIONS`; 1 or
            more: no operation.
        amount: strength and direction.
    """
    changed = patches.clone()
    operation_index = (which * len(OPERATIONS)).long()
    for index, operation in enumerate(OPERATIONS):
        chosen = torch.nonzero(operation_index == index).flatten()
        if len(chosen):
            changed[chosen] = operation(patches[chosen], rearrange(amount[chosen], "n -> n 1 1 1"))
    return changed


def brightness(x: Tensor, amount: Tensor) -> Tensor:
    """Blend towards black, or away from it."""
    return _blend(x, torch.zeros_like(x), amount)


def contrast(x: Tensor, amount: Tensor) -> Tensor:
    """Blend towards the mean grey of the patch, or away from it."""
    return _blend(x, reduce(_grey(x), "n 1 p q -> n 1 1 1", "mean"), amount)


def colour(x: Tensor, amount: Tensor) -> Tensor:
    """Blend towards grey, or away from it; a single channel is not changed."""
    return _blend(x, _grey(x), amount)


def sharpness(x: Tensor, amount: Tensor) -> Tensor:
    """Blend towards a blur of 3 x 3 pixels, or away from it, except at the border.

    The weight of the middle pixel is five times the weight of each other pixel.
    """
    if x.shape[2] < 3:
        return x
    blurred = x.clone()
    blurred[..., 1:-1, 1:-1] = (9 * F.avg_pool2d(x, 3, 1) + 4 * x[..., 1:-1, 1:-1]) / 13
    return _blend(x, blurred, amount)


def posterise(x: Tensor, amount: Tensor) -> Tensor:
    """Reduce the levels of brightness to 4, 8 or 16."""
    num_choices = _MOST_BITS - _FEWEST_BITS + 1
    bits = _FEWEST_BITS + ((amount + 1) / 2 * num_choices).floor().clamp(max=num_choices - 1)
    levels = 2**bits
    return torch.minimum((x * levels).floor(), levels - 1) / levels


def solarise(x: Tensor, amount: Tensor) -> Tensor:
    """Invert pixels that are brighter than a threshold; at amount -1 all pixels are inverted."""
    return torch.where(x >= (amount + 1) / 2, 1 - x, x)


def stretch(x: Tensor, amount: Tensor) -> Tensor:
    """Stretch each channel from black to white ("AutoContrast"), at any amount; a constant channel is not changed."""
    low, high = (reduce(x, "n c p q -> n c 1 1", extreme) for extreme in ("min", "max"))
    is_flat = high - low < _LEVEL / 2
    return torch.where(is_flat, x, (x - low) / torch.where(is_flat, 1.0, high - low))


def _blend(x: Tensor, other: Tensor, amount: Tensor) -> Tensor:
    return torch.lerp(other.expand_as(x), x, 1 + _STRENGTH * amount).clamp(0, 1)


def _grey(x: Float[Tensor, "n C P P"]) -> Float[Tensor, "n 1 P P"]:
    if x.shape[1] != 3:
        return reduce(x, "n c p q -> n 1 p q", "mean")
    return reduce(x * rearrange(torch.tensor(_GREY), "c -> c 1 1"), "n c p q -> n 1 p q", "sum")


OPERATIONS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    brightness,
    contrast,
    colour,
    sharpness,
    posterise,
    solarise,
    stretch,
)
