"""Patches that are changed one by one, so that edges and colours of neighbours do not match.

B images, C channels, S image side, P patch side, H rows and W columns of patches, n patches.
"""

import math
from typing import Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cpc.data.images.patch_light import change_light
from cpc.data.streams.keyed_draws import keyed_uniforms
from cpc.encoders.patch_grid import PatchGrid

Augmentation = Literal["none", "v1", "v2"]
AUGMENTATIONS: tuple[str, ...] = get_args(Augmentation)

_JITTERED_SHARE = 60 / 64  # of a patch's side: the paper's 60 x 60 of 64 x 64
_DRAWS = {"v1": 2, "v2": 8}  # uniform numbers per patch
_COLOUR_DROP_SHARE = 0.8
_CHANGED_SHARE = 0.8  # of patches that are turned, sheared or moved, and of those whose light is changed
# Of a turn, of shears along rows and columns, and of shifts, in units of half a side.
_LARGEST = (math.radians(20), 0.3, 0.3, 0.4, 0.4)


class PatchAugmentation:
    """Cuts images into patches and changes each by itself; the numbers drawn depend on the image's key alone.

    - `v1` (van den Oord et al. 2018, 3.2): a patch is a random sub-crop, 60 of 64 pixels wide, with the mean colour
      around it. The paper's grey images are a matter of the encoder's `num_channels`.
    - `v2` (after Henaff et al. 2019, arXiv:1905.09272): besides, every patch is mirrored or not, undergoes one of
      AutoAugment's changes of light and colour (`cpc.data.images.patch_light`) and one of its movements (turned,
      sheared or shifted along either axis), each with a probability of 0.8, and loses two of its three colour channels
      with another of 0.8. The paper names colour dropping, mirroring and AutoAugment's operations; which of them,
      amounts and probabilities are ours. The frame keeps the mean colour, whatever becomes of the light inside.
    - `none`: the patches as they are.

    Args:
        kind: of these.
        grid: where patches lie.
        fill: `[C]` colour around sub-crops and of lost channels: the corpus' mean, zero once it is standardised.

    Attributes:
        crop_size: side of sub-crops, at least one pixel below the patch's; None where there are none.
    """

    def __init__(self, kind: str, grid: PatchGrid, fill: Float[Tensor, " C"]) -> None:
        if kind not in AUGMENTATIONS:
            raise ValueError(f"augmentation={kind!r} is not one of {', '.join(AUGMENTATIONS)}")
        self.kind = kind
        self.grid = grid
        self.fill = fill
        self.crop_size = None if kind == "none" else int(grid.patch_size * _JITTERED_SHARE)

    def __call__(self, images: Float[Tensor, "B C S S2"], keys: Int[np.ndarray, " B"]) -> Float[Tensor, "B H W C P P"]:
        """Patches of images with pixels in [0, 1], changed as their keys say."""
        if self.crop_size is None:
            return self.grid.patches(images).contiguous()
        num_rows, num_columns = (self.grid.side(size) for size in images.shape[2:])
        draws = torch.from_numpy(keyed_uniforms(keys, num_rows * num_columns * _DRAWS[self.kind])).float()
        of_patch = rearrange(draws, "b (h w d) -> d b h w", h=num_rows, w=num_columns)
        slack = self.grid.patch_size - self.crop_size + 1
        # rounded to float32, a number just below 1 is 1
        top, left = ((of_patch[i] * slack).long().clamp(max=slack - 1) for i in (0, 1))
        crops = self._sub_crops(images, top, left, self.crop_size)
        if self.kind == "v1":
            return self._framed(crops)
        flip, place, place_amount, light, light_amount, colour = rearrange(of_patch[2:], "d b h w -> d (b h w)")
        flat = rearrange(crops, "b h w c p q -> (b h w) c p q")
        flat = self._framed(change_light(flat, light / _CHANGED_SHARE, 2 * light_amount - 1))
        fill = rearrange(self.fill, "c -> c 1 1")
        # relative to the fill, since zero is what movements bring in
        flat = _moved(flat - fill, flip, place / _CHANGED_SHARE, 2 * place_amount - 1)
        flat = flat * rearrange(self._kept(colour), "n c -> n c 1 1") + fill
        return rearrange(flat, "(b h w) c p q -> b h w c p q", b=len(images), h=num_rows)

    def without_chance(self, images: Float[Tensor, "B C S S2"]) -> Float[Tensor, "B H W C P P"]:
        """The patches to judge by: cut in the middle and framed as in training, otherwise as they are."""
        patches = self.grid.patches(images)
        if self.crop_size is None:
            return patches.contiguous()
        return torch.where(self.grid.is_inside(self.crop_size), patches, rearrange(self.fill, "c -> c 1 1"))

    def _sub_crops(
        self, images: Tensor, top: Int[Tensor, "B H W"], left: Int[Tensor, "B H W"], crop: int
    ) -> Float[Tensor, "B H W C p p"]:
        """The crop of each patch that begins `top` and `left` of its corner."""
        _, num_rows, num_columns = top.shape
        rows = top + self.grid.stride * torch.arange(num_rows)[:, None]
        columns = left + self.grid.stride * torch.arange(num_columns)
        everywhere = rearrange(images.unfold(2, crop, 1).unfold(3, crop, 1), "b c s r p q -> b s r c p q")  # a view
        return everywhere[rearrange(torch.arange(len(images)), "b -> b 1 1"), rows, columns]

    def _framed(self, crops: Float[Tensor, "... C p p"]) -> Float[Tensor, "... C P P"]:
        """Crops in the middle of a patch of the mean colour."""
        size, crop = self.grid.patch_size, crops.shape[-1]
        patches = rearrange(self.fill, "c -> c 1 1").expand(*crops.shape[:-2], size, size).clone()
        first = (size - crop) // 2
        patches[..., first : first + crop, first : first + crop] = crops
        return patches

    def _kept(self, colour: Float[Tensor, " n"]) -> Bool[Tensor, "n C"]:
        """Which channels a patch keeps; one channel is kept."""
        num_channels = len(self.fill)
        # the kept channel follows from the same number: uniform among those that fall under the share
        kept = (colour / _COLOUR_DROP_SHARE * num_channels).long()
        is_kept = torch.arange(num_channels) == rearrange(kept, "n -> n 1")
        return is_kept | rearrange((colour >= _COLOUR_DROP_SHARE) | (num_channels == 1), "n -> n 1")


def _moved(
    x: Float[Tensor, "n C P P"], flip: Float[Tensor, " n"], which: Float[Tensor, " n"], amount: Float[Tensor, " n"]
) -> Float[Tensor, "n C P P"]:
    """Mirror half of the patches, and turn, shear or shift each by an amount of its own; zero comes in at the rim.

    Args:
        x: pixels.
        flip: below 0.5 mirrors.
        which: turned, sheared or shifted along rows or columns: five equal parts of [0, 1); 1 or more: none of them.
        amount: how much, in [-1, 1).
    """
    number = (which * len(_LARGEST)).long()
    turn, shear_row, shear_column, shift_row, shift_column = (
        torch.where(number == index, amount * largest, 0.0) for index, largest in enumerate(_LARGEST)
    )
    mirror = torch.where(flip < 0.5, -1.0, 1.0)
    row = torch.stack([mirror * turn.cos(), shear_row - turn.sin(), shift_row], -1)
    column = torch.stack([mirror * (turn.sin() + shear_column), turn.cos(), shift_column], -1)
    places = F.affine_grid(torch.stack([row, column], 1), list(x.shape), align_corners=False)
    return F.grid_sample(x, places, align_corners=False)
