"""Grids of overlapping patches of an image.

B images, C channels, S image side, P patch side, H rows and W columns of patches.
"""

import math
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Bool, Shaped
from torch import Tensor

from cpc.config.argument_rules import Range


@dataclass(frozen=True)
class PatchGrid:
    """A grid of square patches.

    The grid of van den Oord et al. 2018 (section 3.2), 64 pixels every 32, gives 7 x 7 patches of an image of 256
    pixels.
    """

    patch_size: int  # side of a patch in pixels
    stride: int  # distance of neighbouring patches in pixels

    def __post_init__(self) -> None:
        Range(1, self.patch_size).check("`stride`", self.stride)

    @property
    def overlapping_rows(self) -> int:
        """The number of following rows that share pixels with a row. Skip these rows: they are partly known."""
        return math.ceil(self.patch_size / self.stride) - 1

    def side(self, image_size: int) -> int:
        """Return the number of patches along a side of the image."""
        if image_size < self.patch_size:
            raise ValueError(f"images of {image_size} pixels are smaller than patch_size={self.patch_size}")
        room = image_size - self.patch_size
        side, rest = room // self.stride, room % self.stride  # torch.export does not support divmod
        if rest:
            patches, fitting = f"patches of {self.patch_size} pixels every {self.stride} pixels", image_size - rest
            legal = f"set `image_size` to {fitting} or {fitting + self.stride}"
            raise ValueError(f"{patches} leave out the last {rest} pixels of images of {image_size}: {legal}")
        return side + 1

    def patches(self, images: Shaped[Tensor, "B C S S2"]) -> Shaped[Tensor, "B H W C P P"]:
        """Return the patches of the images, as a view."""
        for size in images.shape[2:]:
            self.side(size)
        cut = images.unfold(2, self.patch_size, self.stride).unfold(3, self.patch_size, self.stride)
        return rearrange(cut, "b c h w p q -> b h w c p q")

    def is_inside(self, crop_size: int) -> Bool[Tensor, "P P"]:
        """Return the mask of the central square of `crop_size` pixels of a patch; the other pixels are its frame."""
        index = torch.arange(self.patch_size) - (self.patch_size - crop_size) // 2
        inside = (index >= 0) & (index < crop_size)
        return inside[:, None] & inside
