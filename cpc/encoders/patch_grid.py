"""Images as grids of overlapping patches.

B images, C channels, S image side, P patch side, H rows and W columns of patches.
"""

import math
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Bool, Shaped
from torch import Tensor


@dataclass(frozen=True)
class PatchGrid:
    """Where patches lie: the paper's 64 pixels every 32 give 7 x 7 of an image of 256 (van den Oord et al. 2018, 3.2).

    Attributes:
        patch_size: side of a patch, pixels.
        stride: from a patch to the next, pixels.

    Raises:
        ValueError: if a number is below 1, or the stride leaves pixels between patches out.
    """

    patch_size: int
    stride: int

    def __post_init__(self) -> None:
        if min(self.patch_size, self.stride) < 1:
            raise ValueError(f"patch_size={self.patch_size} and stride={self.stride} must be at least 1")
        if self.stride > self.patch_size:
            raise ValueError(
                f"stride={self.stride} is larger than patch_size={self.patch_size}: no patch would see the pixels "
                "between; lower the stride"
            )

    @property
    def overlapping_rows(self) -> int:
        """How many of the next rows share pixels with a row: with so many skipped, a prediction is a prediction."""
        return math.ceil(self.patch_size / self.stride) - 1

    def side(self, image_size: int) -> int:
        """Patches along a side of the image.

        Raises:
            ValueError: if the image is smaller than a patch, or its last pixels would belong to none.
        """
        if image_size < self.patch_size:
            raise ValueError(
                f"images of {image_size} pixels are smaller than patch_size={self.patch_size}: raise `image_size`, "
                "or lower the encoder's patch_size"
            )
        room = image_size - self.patch_size
        side, rest = room // self.stride, room % self.stride  # not divmod: torch.export has none
        if rest:
            fitting = image_size - rest
            raise ValueError(
                f"patches of {self.patch_size} pixels every {self.stride} leave the last {rest} pixels of images of "
                f"{image_size} out: set `image_size` to {fitting} or {fitting + self.stride}, or change the stride"
            )
        return side + 1

    def patches(self, images: Shaped[Tensor, "B C S S2"]) -> Shaped[Tensor, "B H W C P P"]:
        """Cut images into patches; a view, no copy."""
        for size in images.shape[2:]:
            self.side(size)
        cut = images.unfold(2, self.patch_size, self.stride).unfold(3, self.patch_size, self.stride)
        return rearrange(cut, "b c h w p q -> b h w c p q")

    def is_inside(self, crop_size: int) -> Bool[Tensor, "P P"]:
        """Which pixels of a patch belong to the square of `crop_size` in its middle; the others are its frame."""
        place = torch.arange(self.patch_size) - (self.patch_size - crop_size) // 2
        inside = (place >= 0) & (place < crop_size)
        return inside[:, None] & inside
