"""Augmentation of single patches, so that edges and colours of neighbouring patches do not match.

Random numbers are a function of a key and an index. There is no generator and no state; all ranks agree.

B images, C channels, S image side, P patch side, H rows and W columns of patches, n patches.
"""

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange, reduce
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cpc.config.argument_rules import checked
from cpc.encoders.patch_grid import PatchGrid
from cpc.native.splitmix64 import INCREMENT, LAST_SHIFT, ROUNDS

_INCREMENT = np.uint64(INCREMENT)


def keyed_uniforms(keys: Int[np.ndarray, " B"], num: int) -> Float[np.ndarray, "B n"]:
    """Return `num` numbers in [0, 1) for every key, a 64-bit integer, by SplitMix64 (`cpc.native.splitmix64`)."""
    with np.errstate(over="ignore"):  # the method computes modulo 2^64
        streams = _mix(keys.astype(np.uint64) * _INCREMENT + _INCREMENT)
        bits = _mix(streams[:, None] + _INCREMENT * np.arange(1, num + 1, dtype=np.uint64))
    return (bits >> np.uint64(11)) * 2.0**-53


def _mix(x: np.ndarray) -> np.ndarray:
    for shift, factor in ROUNDS:
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x ^ (x >> np.uint64(LAST_SHIFT))


Augmentation = Literal["none", "light", "v1", "v2"]

_JITTERED_SHARE = 60 / 64  # side of a crop relative to the patch's: 60 of 64 pixels, as in the paper
FRAMELESS = ("none", "light")  # augmentation that shows whole patches
_DRAWS = {"light": 6, "v1": 2, "v2": 8}  # number of uniform random numbers per patch
_COLOUR_DROP_SHARE = 0.8
_STRENGTH = 0.6  # brightness, contrast, colour and sharpness are multiplied by 1 - this to 1 + this
_LOG_LIGHT, _LOG_CAST, _GREY_SHARE = 0.8, 0.4, 0.3  # of `light`
_FEWEST_BITS, _MOST_BITS = 2, 4  # bits of a pixel after posterisation
_LEVEL = 1 / 255  # difference of neighbouring levels in uint8 images
_GREY = (0.299, 0.587, 0.114)  # weights of red, green and blue (ITU-R 601-2)
_CHANGED_SHARE = 0.8  # probability of a movement, and of a change of light
# Largest rotation; largest shears along rows and columns; largest shifts along rows and columns, in half sides.
_LARGEST = (math.radians(20), 0.3, 0.3, 0.4, 0.4)


class PatchAugmentation:
    """Cuts images into patches and changes each patch separately; random numbers depend only on the key of the image.

    - `v1` (van den Oord et al. 2018, 3.2): a patch is a random sub-crop, 60 of 64 pixels wide, in a frame of the mean
      colour. For the paper's grey images, set the encoder's `num_channels` to 1.
    - `v2` (after Henaff et al. 2019, arXiv:1905.09272): in addition, a patch is mirrored with probability 0.5. It
      undergoes one of AutoAugment's changes of light and colour (`OPERATIONS`) with probability 0.8,
      and one of AutoAugment's movements (rotation, shear or shift along either axis) with probability 0.8. It loses two
      of its three colour channels with probability 0.8. The paper names colour dropping, mirroring and AutoAugment's
      operations; we chose the operations, amounts and probabilities. Changes of light do not affect the frame.
    - `light`: the light of a patch changes by amounts of its own (`vary_light`), without a frame. So the light does not
      tell the patches of an image from those of others.
    - `none`: patches are not changed.

    Args:
        kind: `none`, `light`, `v1` or `v2`.
        grid: positions of the patches.
        fill: `[C]` colour of the frame and of dropped channels: the mean of the corpus, zero after standardisation.

    Attributes:
        crop_size: side of sub-crops, at least one pixel below the patch's; None without sub-crops.
    """

    @checked
    def __init__(self, kind: Augmentation, grid: PatchGrid, fill: Float[Tensor, " C"]) -> None:
        self.kind = kind
        self.grid = grid
        self.fill = fill
        self.crop_size = None if kind in FRAMELESS else int(grid.patch_size * _JITTERED_SHARE)

    def __call__(self, images: Float[Tensor, "B C S S2"], keys: Int[np.ndarray, " B"]) -> Float[Tensor, "B H W C P P"]:
        """Return the patches of images with pixels in [0, 1], changed by the images' keys."""
        if self.kind == "none":
            return self.grid.patches(images).contiguous()
        num_rows, num_columns = (self.grid.side(size) for size in images.shape[2:])
        draws = torch.from_numpy(keyed_uniforms(keys, num_rows * num_columns * _DRAWS[self.kind])).float()
        patch_draws = rearrange(draws, "b (h w d) -> d b h w", h=num_rows, w=num_columns)
        if self.crop_size is None:
            patches = rearrange(self.grid.patches(images), "b h w c p q -> (b h w) c p q")
            patches = vary_light(patches, rearrange(patch_draws, "d b h w -> d (b h w)"))
            return rearrange(patches, "(b h w) c p q -> b h w c p q", b=len(images), h=num_rows)
        slack = self.grid.patch_size - self.crop_size + 1
        # The clamp is needed because float32 rounds a number just below 1 to 1.
        top, left = ((patch_draws[i] * slack).long().clamp(max=slack - 1) for i in (0, 1))
        crops = self._sub_crops(images, top, left, self.crop_size)
        if self.kind == "v1":
            return self._framed(crops)
        flip, movement, movement_amount, light, light_amount, colour = rearrange(
            patch_draws[2:], "d b h w -> d (b h w)"
        )
        flat = rearrange(crops, "b h w c p q -> (b h w) c p q")
        flat = self._framed(change_light(flat, light / _CHANGED_SHARE, 2 * light_amount - 1))
        fill = rearrange(self.fill, "c -> c 1 1")
        # Pixels are relative to the fill colour here, since movements pad with zero.
        flat = _moved(flat - fill, flip, movement / _CHANGED_SHARE, 2 * movement_amount - 1)
        flat = flat * rearrange(self._kept(colour), "n c -> n c 1 1") + fill
        return rearrange(flat, "(b h w) c p q -> b h w c p q", b=len(images), h=num_rows)

    def unaugmented(self, images: Float[Tensor, "B C S S2"]) -> Float[Tensor, "B H W C P P"]:
        """Return patches for evaluation: crops from the middle, with the frame of training, otherwise unchanged."""
        patches = self.grid.patches(images)
        if self.crop_size is None:
            return patches.contiguous()
        return torch.where(self.grid.is_inside(self.crop_size), patches, rearrange(self.fill, "c -> c 1 1"))

    def _sub_crops(
        self, images: Tensor, top: Int[Tensor, "B H W"], left: Int[Tensor, "B H W"], crop: int
    ) -> Float[Tensor, "B H W C p p"]:
        """Return the crop of each patch that begins at `top` and `left` from the patch's corner."""
        _, num_rows, num_columns = top.shape
        rows = top + self.grid.stride * torch.arange(num_rows)[:, None]
        columns = left + self.grid.stride * torch.arange(num_columns)
        everywhere = rearrange(images.unfold(2, crop, 1).unfold(3, crop, 1), "b c s r p q -> b s r c p q")  # a view
        return everywhere[rearrange(torch.arange(len(images)), "b -> b 1 1"), rows, columns]

    def _framed(self, crops: Float[Tensor, "... C p p"]) -> Float[Tensor, "... C P P"]:
        """Return patches of the mean colour with the crops in the middle."""
        size, crop = self.grid.patch_size, crops.shape[-1]
        patches = rearrange(self.fill, "c -> c 1 1").expand(*crops.shape[:-2], size, size).clone()
        first = (size - crop) // 2
        patches[..., first : first + crop, first : first + crop] = crops
        return patches

    def _kept(self, colour: Float[Tensor, " n"]) -> Bool[Tensor, "n C"]:
        """Return which channels a patch keeps; a single channel is always kept."""
        num_channels = len(self.fill)
        # The number that decided to drop channels, then still uniform, also selects the channel that is kept.
        kept = (colour / _COLOUR_DROP_SHARE * num_channels).long()
        is_kept = torch.arange(num_channels) == rearrange(kept, "n -> n 1")
        return is_kept | rearrange((colour >= _COLOUR_DROP_SHARE) | (num_channels == 1), "n -> n 1")


def _moved(
    x: Float[Tensor, "n C P P"], flip: Float[Tensor, " n"], which: Float[Tensor, " n"], amount: Float[Tensor, " n"]
) -> Float[Tensor, "n C P P"]:
    """Mirror half of the patches, and rotate, shear or shift each patch by its own amount; pad with zero.

    A patch with a `flip` below 0.5 is mirrored. `which` selects the movement: the five equal parts of [0, 1) stand for
    the entries of `_LARGEST`; 1 or more: no movement. `amount` is its sign and size in [-1, 1), a share of the largest.
    """
    movement = (which * len(_LARGEST)).long()
    turn, shear_row, shear_column, shift_row, shift_column = (
        torch.where(movement == index, amount * largest, 0.0) for index, largest in enumerate(_LARGEST)
    )
    mirror = torch.where(flip < 0.5, -1.0, 1.0)
    row = torch.stack([mirror * turn.cos(), shear_row - turn.sin(), shift_row], -1)
    column = torch.stack([mirror * (turn.sin() + shear_column), turn.cos(), shift_column], -1)
    positions = F.affine_grid(torch.stack([row, column], 1), list(x.shape), align_corners=False)
    return F.grid_sample(x, positions, align_corners=False)


def change_light(
    patches: Float[Tensor, "n C P P"], which: Float[Tensor, " n"], amount: Float[Tensor, " n"]
) -> Float[Tensor, "n C P P"]:
    """Change every patch by one of AutoAugment's `OPERATIONS` (Cubuk et al. 2019, arXiv:1805.09501).

    Pixels lie in [0, 1] before and after, amounts in [-1, 1). Operations follow Pillow's definitions, as in
    torchvision, which takes one amount for all patches. Inversion is solarisation at amount -1; equalisation is left
    out. `which` selects the operation: equal parts of [0, 1) stand for `OPERATIONS`; 1 or more: no operation.
    """
    changed = patches.clone()
    operation_index = (which * len(OPERATIONS)).long()
    for index, operation in enumerate(OPERATIONS):
        chosen = torch.nonzero(operation_index == index).flatten()
        if len(chosen):
            changed[chosen] = operation(patches[chosen], rearrange(amount[chosen], "n -> n 1 1 1"))
    return changed


def _blend_with(other: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the operation that blends patches towards another picture, or away from it."""
    return lambda x, amount: torch.lerp(other(x).expand_as(x), x, 1 + _STRENGTH * amount).clamp(0, 1)


def _blurred(x: Tensor) -> Tensor:
    """Return a blur of 3 x 3 pixels, whose middle weighs five times as much; borders stay."""
    blurred = x.clone()
    if x.shape[2] >= 3:
        blurred[..., 1:-1, 1:-1] = (9 * F.avg_pool2d(x, 3, 1) + 4 * x[..., 1:-1, 1:-1]) / 13
    return blurred


def _grey(x: Float[Tensor, "n C P P"]) -> Float[Tensor, "n 1 P P"]:
    if x.shape[1] != 3:
        return reduce(x, "n c p q -> n 1 p q", "mean")
    return reduce(x * rearrange(torch.tensor(_GREY), "c -> c 1 1"), "n c p q -> n 1 p q", "sum")


brightness = _blend_with(torch.zeros_like)
contrast = _blend_with(lambda x: reduce(_grey(x), "n 1 p q -> n 1 1 1", "mean"))
colour = _blend_with(_grey)
sharpness = _blend_with(_blurred)


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


def vary_light(x: Float[Tensor, "n C P P"], draws: Float[Tensor, "6 n"]) -> Float[Tensor, "n C P P"]:
    """Multiply brightness, each of at most three channels, and contrast of a patch; three in ten become grey.

    The logarithms of the factors are uniform, up to 0.8 for brightness and contrast, and 0.4 for channels. `draws` are
    numbers in [0, 1) for brightness, contrast, grey and the channels. Pixels may leave [0, 1].
    """
    amounts = rearrange(2 * draws - 1, "d n -> d n 1 1 1")
    casts = rearrange(amounts[3:], "c n 1 1 1 -> n c 1 1")[:, : x.shape[1]]
    x = x * (_LOG_LIGHT * amounts[0] + _LOG_CAST * casts).exp()
    middle = reduce(x, "n c p q -> n 1 1 1", "mean")
    x = middle + (x - middle) * (_LOG_LIGHT * amounts[1]).exp()
    is_grey = rearrange(draws[2] < _GREY_SHARE, "n -> n 1 1 1")
    return torch.where(is_grey, reduce(x, "n c p q -> n 1 p q", "mean"), x)


OPERATIONS = (brightness, contrast, colour, sharpness, posterise, solarise, stretch)
