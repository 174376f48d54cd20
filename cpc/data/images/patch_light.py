"""AutoAugment's changes of light and colour (Cubuk et al. 2019, arXiv:1805.09501), each patch by an amount of its own.

n patches, C channels, P patch side. Pixels lie in [0, 1] and stay there; amounts lie in [-1, 1). What an operation does
is Pillow's definition of it, as torchvision has it for a single amount. Left out: inversion, which solarisation ends
in, and equalisation, which by that definition leaves patches of fewer than 256 pixels as they are.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from einops import rearrange, reduce
from jaxtyping import Float
from torch import Tensor

_STRENGTH = 0.6  # brightness, contrast, colour and sharpness change by up to this factor
_FEWEST_BITS, _MOST_BITS = 2, 4  # that posterisation leaves
_LEVEL = 1 / 255  # from a level of brightness to the next in images as they are stored
_GREY = (0.299, 0.587, 0.114)  # what red, green and blue are worth (ITU-R 601-2)


def change_light(
    patches: Float[Tensor, "n C P P"], which: Float[Tensor, " n"], amount: Float[Tensor, " n"]
) -> Float[Tensor, "n C P P"]:
    """Change every patch by one of `OPERATIONS`.

    Args:
        patches: pixels.
        which: the operation, as a number in [0, 1) that falls into one of as many equal parts; 1 or more: none.
        amount: how strongly, and which way.
    """
    changed = patches.clone()
    number = (which * len(OPERATIONS)).long()
    for index, operation in enumerate(OPERATIONS):
        chosen = torch.nonzero(number == index).flatten()
        if len(chosen):
            changed[chosen] = operation(patches[chosen], rearrange(amount[chosen], "n -> n 1 1 1"))
    return changed


def brightness(x: Tensor, amount: Tensor) -> Tensor:
    """Towards black, or away from it."""
    return _blend(x, torch.zeros_like(x), amount)


def contrast(x: Tensor, amount: Tensor) -> Tensor:
    """Towards the mean grey of the patch, or away from it."""
    return _blend(x, reduce(_grey(x), "n 1 p q -> n 1 1 1", "mean"), amount)


def colour(x: Tensor, amount: Tensor) -> Tensor:
    """Towards grey, or away from it; a single channel stays as it is."""
    return _blend(x, _grey(x), amount)


def sharpness(x: Tensor, amount: Tensor) -> Tensor:
    """Towards a blur of 3 x 3 pixels, the middle one worth five of the others, or away from it; not along the rim."""
    if x.shape[2] < 3:
        return x
    blurred = x.clone()
    blurred[..., 1:-1, 1:-1] = (9 * F.avg_pool2d(x, 3, 1) + 4 * x[..., 1:-1, 1:-1]) / 13
    return _blend(x, blurred, amount)


def posterise(x: Tensor, amount: Tensor) -> Tensor:
    """Fewer levels of brightness: 4, 8 or 16."""
    num_choices = _MOST_BITS - _FEWEST_BITS + 1
    bits = _FEWEST_BITS + ((amount + 1) / 2 * num_choices).floor().clamp(max=num_choices - 1)
    levels = 2**bits
    return torch.minimum((x * levels).floor(), levels - 1) / levels


def solarise(x: Tensor, amount: Tensor) -> Tensor:
    """What is brighter than a threshold becomes its negative; at -1 everything does."""
    return torch.where(x >= (amount + 1) / 2, 1 - x, x)


def stretch(x: Tensor, amount: Tensor) -> Tensor:
    """Each channel from black to white ("AutoContrast"), by no amount; one of a single level stays as it is."""
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
