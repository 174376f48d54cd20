"""Patches that are changed one by one, so that neighbours do not betray themselves by matching edges or colours.

B images, C channels, S image side, P patch side, H rows and W columns of patches, n patches.
"""

import math
from typing import Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange, reduce, repeat
from jaxtyping import Float, Int
from torch import Tensor

from cpc.data.keyed_draws import keyed_uniforms
from cpc.data.patch_grid import PatchGrid

Augmentation = Literal["none", "v1", "v2"]
AUGMENTATIONS: tuple[str, ...] = get_args(Augmentation)

_JITTERED_SHARE = 60 / 64  # of a patch's side: the paper's 60 x 60 of 64 x 64
_DRAWS = {"v1": 2, "v2": 9}  # uniform numbers per patch
_COLOUR_DROP_SHARE = 0.8
_CHANGED_SHARE = 0.8  # of patches that are turned or sheared, and of those whose light is changed
_LARGEST_ANGLE = math.radians(20)
_LARGEST_SHEAR = 0.3
_LIGHT = 0.4  # brightness and contrast change by up to this factor


class PatchAugmentation:
    """Cuts images into patches and changes each by itself; the numbers drawn follow from the image's key.

    - `v1` (van den Oord et al. 2018, 3.2): a patch is a random sub-crop, 60 of 64 pixels wide, with the mean colour
      around it. The paper's grey images are a matter of the encoder's `num_channels`.
    - `v2` (after Henaff et al. 2019, arXiv:1905.09272): besides, every patch is mirrored or not, turned or sheared,
      changed in brightness and contrast, and loses two of its three colour channels with a probability of 0.8. The
      paper names colour dropping, mirroring and further transformations; amounts and probabilities are ours.
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
        patches = self._sub_crops(images, top, left, self.crop_size)
        if self.kind == "v1":
            return patches
        flat = rearrange(patches, "b h w c p q -> (b h w) c p q") - rearrange(self.fill, "c -> c 1 1")
        flat = self._changed(flat, rearrange(of_patch[2:], "d b h w -> d (b h w)"))
        return rearrange(
            flat + rearrange(self.fill, "c -> c 1 1"), "(b h w) c p q -> b h w c p q", b=len(images), h=num_rows
        )

    def without_chance(self, images: Float[Tensor, "B C S S2"]) -> Float[Tensor, "B H W C P P"]:
        """The patches to judge by: cut in the middle and framed as in training, otherwise as they are."""
        patches = self.grid.patches(images)
        if self.crop_size is None:
            return patches.contiguous()
        return torch.where(self.grid.is_inside(self.crop_size), patches, rearrange(self.fill, "c -> c 1 1"))

    def _sub_crops(
        self, images: Tensor, top: Int[Tensor, "B H W"], left: Int[Tensor, "B H W"], crop: int
    ) -> Float[Tensor, "B H W C P P"]:
        """The crop of each patch that begins `top` and `left` of its corner, in the middle of a frame."""
        _, num_rows, num_columns = top.shape
        size, stride = self.grid.patch_size, self.grid.stride
        inner = (torch.arange(size) - (size - crop) // 2).clamp(0, crop - 1)  # place within the crop; of the frame, any
        rows = rearrange(top + stride * torch.arange(num_rows)[:, None], "b h w -> b h w 1 1") + inner[:, None]
        columns = rearrange(left + stride * torch.arange(num_columns), "b h w -> b h w 1 1") + inner
        pixels = rearrange(rows * images.shape[3] + columns, "b h w p q -> b 1 (h w p q)")
        cut = rearrange(images, "b c s r -> b c (s r)").gather(2, pixels.expand(-1, images.shape[1], -1))
        cut = rearrange(cut, "b c (h w p q) -> b h w c p q", h=num_rows, w=num_columns, p=size)
        return torch.where(self.grid.is_inside(crop), cut, rearrange(self.fill, "c -> c 1 1"))

    def _changed(self, x: Float[Tensor, "n C P P"], draws: Float[Tensor, "d n"]) -> Float[Tensor, "n C P P"]:
        """Mirror, turn or shear, change the light, drop colours; zero is the fill."""
        flip, which, amount, is_lit, brightness, contrast, colour = draws
        amount = 2 * amount - 1
        angle = torch.where(which < _CHANGED_SHARE / 2, amount * _LARGEST_ANGLE, 0.0)
        shear = torch.where((which >= _CHANGED_SHARE / 2) & (which < _CHANGED_SHARE), amount * _LARGEST_SHEAR, 0.0)
        mirror = torch.where(flip < 0.5, -1.0, 1.0)
        zero = torch.zeros_like(angle)
        theta = torch.stack(
            [
                torch.stack([mirror * angle.cos(), -angle.sin() + shear, zero], -1),
                torch.stack([mirror * angle.sin(), angle.cos(), zero], -1),
            ],
            1,
        )
        x = F.grid_sample(x, F.affine_grid(theta, list(x.shape), align_corners=False), align_corners=False)
        lit = is_lit < _CHANGED_SHARE
        gain = torch.where(lit, 1 + _LIGHT * (2 * contrast - 1), 1.0)
        offset = torch.where(lit, _LIGHT * (brightness - 0.5), 0.0)
        mean = reduce(x, "n c p q -> n 1 1 1", "mean")
        x = (x - mean) * rearrange(gain, "n -> n 1 1 1") + mean + rearrange(offset, "n -> n 1 1 1")
        num_channels = x.shape[1]
        if num_channels == 1:
            return x
        # the kept channel follows from the same number: uniform among those that fall under the share
        kept = (colour / _COLOUR_DROP_SHARE * num_channels).long().clamp(max=num_channels - 1)
        is_kept = repeat(torch.arange(num_channels), "c -> n c", n=len(x)) == rearrange(kept, "n -> n 1")
        is_kept = is_kept | rearrange(colour >= _COLOUR_DROP_SHARE, "n -> n 1")
        return x * rearrange(is_kept, "n c -> n c 1 1")
