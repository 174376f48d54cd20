"""The images of a split as a model takes them: patches or whole images, changed as a key decides.

B images, C channels, S image side.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.data import Dataset

from cpc.data.batch import Batch
from cpc.data.images.files import ImageFiles
from cpc.data.images.pack import PackedImages
from cpc.data.images.patch_augmentation import PatchAugmentation
from cpc.data.images.table import ImageTable
from cpc.data.streams.keyed_draws import keyed_uniforms
from cpc.data.streams.stream import Draw, digest

NUM_KEYS = 2**40  # ways to change an image
Chance = Literal["none", "images", "patches"]


@dataclass(eq=False)
class ImageDataset(Dataset[Batch]):
    """Some images of a table with the changes that training makes; an index is a pair (position in `rows`, key).

    Args:
        images: where pixels come from.
        table: names, labels and sequences of the images.
        rows: `[n]` of the table.
        image_size: side of the square that is cut out of each image.
        augmentation: how patches are cut and changed; None: whole images are handed on.
        chance: what the key decides: `none`, images are cut in the middle; `images`, where they are cut, and whether
            they are mirrored; `patches`, how patches are changed as well.
        flip: mirror half of the images.
        split: of the corpus, for messages.
        num_latents: of an image, all patches.
    """

    images: PackedImages | ImageFiles
    table: ImageTable
    rows: np.ndarray
    image_size: int
    augmentation: PatchAugmentation | None
    chance: Chance = "none"
    flip: bool = False
    split: str | None = None
    num_latents: int = 0

    def __post_init__(self) -> None:
        self.sequence_ids, self.labels = self.table.sequences[self.rows], self.table.labels[self.rows]
        self.group_ids = np.full(len(self.rows), -1)
        self.num_values = self.image_size**2 * self.images.num_channels

    @cached_property
    def draws(self) -> dict[str, Any]:
        """Each image once in a pass, with a key that decides how it is changed this time."""
        made_from = {
            "images": digest(self.table.names[row] for row in self.rows.tolist()),
            "content of images": digest(self.images.content(self.rows)),
        }
        return {"sequence_ids": self.sequence_ids, "noun": "image", "num_starts": NUM_KEYS, "made_from": made_from}

    def __getitems__(self, drawn: Sequence[Draw]) -> Batch:
        """All images of a batch; `x` holds patches `[B, H, W, C, P, P]`, or images `[B, C, S, S]`, in [0, 1]."""
        chosen, keys = np.array(drawn).reshape(-1, 2).T
        pixels = self._cut(self.images.read(self.rows[chosen]), keys)
        x = rearrange(torch.from_numpy(pixels), "b s r c -> b c s r").float() / 255
        if self.augmentation is not None:
            patches = self.augmentation
            x = patches(x, keys) if self.chance == "patches" else patches.without_chance(x)
        return Batch(
            x=x,
            num_valid=self.num_valid(drawn),
            sequence_id=torch.from_numpy(self.sequence_ids[chosen]),
            group_id=torch.from_numpy(self.group_ids[chosen]),
            labels=rearrange(torch.from_numpy(self.labels[chosen]), "b -> b 1"),
        )

    def num_valid(self, drawn: Sequence[Draw]) -> Int[Tensor, " B"]:
        """The side of each image."""
        return torch.full((len(drawn),), self.image_size)

    def everything(self) -> Batch:
        """All images in order, each with key 0."""
        return self.__getitems__([(place, 0) for place in range(len(self.rows))])

    def pixels(self) -> Float[Tensor, "n C S S"]:
        """All images whole, in [0, 1], cut out of the middle."""
        return replace(self, augmentation=None, chance="none").everything().x

    def subset(self, chosen: np.ndarray) -> "ImageDataset":
        """These images alone, in this order."""
        return replace(self, rows=self.rows[chosen])

    def _cut(self, pixels: np.ndarray, keys: np.ndarray) -> np.ndarray:
        slack = pixels.shape[1] - self.image_size + 1
        draws = keyed_uniforms(~keys, 3) if self.chance != "none" else np.full((len(keys), 3), 0.5)
        tops, lefts = (np.minimum((draws[:, i] * slack).astype(int), slack - 1) for i in (0, 1))
        mirrored = (draws[:, 2] < 0.5) & self.flip  # in the middle, at 0.5, nothing is mirrored
        cut = np.empty((len(pixels), self.image_size, self.image_size, pixels.shape[3]), np.uint8)
        for image, out, top, left, is_mirrored in zip(pixels, cut, tops, lefts, mirrored, strict=True):
            window = image[top : top + self.image_size, left : left + self.image_size]
            out[...] = window[:, ::-1] if is_mirrored else window
        return cut
