"""The images of a source, cut to squares: patches or whole images, augmented by a key. B images, C channels, S side."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int, Int64
from torch import Tensor
from torch.utils.data import Dataset

from cpc.data.batch import Batch
from cpc.data.images.files import ImageFiles
from cpc.data.images.pack import PackedImages, pack_images
from cpc.data.images.patch_augmentation import PatchAugmentation, keyed_uniforms
from cpc.data.images.table import ImageTable
from cpc.data.map_style import MapStyleCorpus
from cpc.data.store.fingerprints import Content
from cpc.data.store.folders import name_a_few
from cpc.data.streams.stream import Draw, SpreadBatches, digest

NUM_KEYS = 2**40  # number of augmentation keys per image
Chance = Literal["none", "images", "patches"]


@dataclass(eq=False)
class ImageDataset(Dataset[Batch]):
    """The images of some rows of a table, cut to squares; an index is a pair (position in `rows`, augmentation key).

    Args:
        augmentation: cut and augmentation of patches; None: `x` holds whole images.
        chance: `none`: images are cut in the middle; `images`: at random places, and mirrored at random; `patches`:
            patches are augmented as well.
        flip: mirror half of the images.
        num_latents: latents (patches) of an image.
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
        self.num_values = self.image_size**2 * self.images.shape[2]

    @cached_property
    def draws(self) -> dict[str, Any]:
        """The arguments of a stream: each image once in a pass, with a new augmentation key."""
        made_from = {
            "images": digest(self.table.names[row] for row in self.rows.tolist()),
            "content of images": digest(self.images.content(self.rows)),
        }
        return {"sequence_ids": self.sequence_ids, "noun": "image", "num_starts": NUM_KEYS, "made_from": made_from}

    def __getitems__(self, drawn: Sequence[Draw]) -> Batch:
        """Return the batch; `x` holds patches `[B, H, W, C, P, P]`, or images `[B, C, S, S]`, in [0, 1]."""
        chosen, keys = np.array(drawn).reshape(-1, 2).T
        pixels = self._cut(self.images.read(self.rows[chosen]), keys)
        x = rearrange(torch.from_numpy(pixels), "b s r c -> b c s r").float() / 255
        if self.augmentation is not None:
            patches = self.augmentation
            x = patches(x, keys) if self.chance == "patches" else patches.unaugmented(x)
        return Batch(
            x=x,
            num_valid=self.num_valid(drawn),
            sequence_id=torch.from_numpy(self.sequence_ids[chosen]),
            group_id=torch.from_numpy(self.group_ids[chosen]),
            labels=rearrange(torch.from_numpy(self.labels[chosen]), "b -> b 1"),
        )

    def num_valid(self, drawn: Sequence[Draw]) -> Int[Tensor, " B"]:
        """Return the side of each image."""
        return torch.full((len(drawn),), self.image_size)

    def all_images(self) -> Batch:
        """Return all images in order, each with key 0."""
        return self.__getitems__([(i, 0) for i in range(len(self.rows))])

    def pixels(self) -> Float[Tensor, "n C S S"]:
        """Return the central squares of all images, in [0, 1]."""
        return replace(self, augmentation=None, chance="none").all_images().x

    def _cut(self, pixels: np.ndarray, keys: np.ndarray) -> np.ndarray:
        slack = pixels.shape[1] - self.image_size + 1
        draws = keyed_uniforms(~keys, 3) if self.chance != "none" else np.full((len(keys), 3), 0.5)
        tops, lefts = (np.minimum((draws[:, i] * slack).astype(int), slack - 1) for i in (0, 1))
        mirrored = (draws[:, 2] < 0.5) & self.flip  # without random changes 0.5, which does not mirror
        cut = np.empty((len(pixels), self.image_size, self.image_size, pixels.shape[3]), np.uint8)
        for image, out, top, left, is_mirrored in zip(pixels, cut, tops, lefts, mirrored, strict=True):
            window = image[top : top + self.image_size, left : left + self.image_size]
            out[...] = window[:, ::-1] if is_mirrored else window
        return cut


@dataclass(eq=False)
class ImageCorpus(MapStyleCorpus):
    """Images by split. The first access to `images` reads pixels; `check` does not.

    `options` is a `cpc.data.Images`, `encoder` an encoder, or an object with its `grid`, `num_channels`,
    `fully_convolutional` and `pixel_mean`. Patches cannot be augmented for a fully convolutional encoder.
    """

    options: Any
    encoder: Any
    table: ImageTable
    nouns = ("speaker", "image")
    uniform = SpreadBatches

    def __post_init__(self) -> None:
        if self.encoder.fully_convolutional and self.options.augmentation != "none":
            found = f"augmentation={self.options.augmentation!r} changes patches one by one"
            raise ValueError(f"{found}, but the encoder has fully_convolutional=True and reads whole images")
        self.num_latents = self.encoder.grid.side(self.options.image_size) ** 2
        _ = self.patches  # raises an error if the augmentation is unknown

    @property
    def patches(self) -> PatchAugmentation:
        """The cut and augmentation of patches. Frames get the encoder's mean colour, so set its statistics first."""
        mean_colour = self.encoder.pixel_mean.detach().cpu().clone()
        return PatchAugmentation(self.options.augmentation, self.encoder.grid, mean_colour)

    @property
    def splits(self) -> Sequence[str]:  # type: ignore[override]  # noqa: D102
        return self.table.splits

    @cached_property
    def images(self) -> PackedImages | ImageFiles:
        """All images of the source. They are packed on first use, unless they are packed already."""
        options, num_channels = self.options, self.encoder.num_channels
        size = options.load_size or options.image_size
        if not options.packed:
            return ImageFiles(self.table, size, num_channels)
        return pack_images(self.table, size, num_channels, options.cache_dir, skip_bad=options.skip_bad)

    def rows(self, split: str | None) -> Int64[np.ndarray, " rows"]:
        """Return the rows of a split whose images were not skipped; None: of all splits. There must be one."""
        rows, skipped = self.table.rows(split), self.images.skipped
        usable = rows[~np.isin(rows, list(skipped))]
        if not len(usable):
            problems = name_a_few([skipped[row] for row in rows.tolist()])
            raise ValueError(f"all {len(rows)} images of split {split!r} were skipped:\n{problems}")
        return usable

    def windows(self, split: str | None, *, is_training: bool = False) -> ImageDataset:
        """Return the images of a split (None: of all), augmented in training."""
        return self.observations(self.rows(split), "patches" if is_training else "none", split)

    def observations(self, rows: np.ndarray, chance: Chance = "none", split: str | None = None) -> ImageDataset:
        """Return the images of these rows; `chance` selects the random changes (see `ImageDataset`)."""
        return ImageDataset(
            self.images,
            self.table,
            rows,
            self.options.image_size,
            None if self.encoder.fully_convolutional else self.patches,
            chance,
            self.options.flip,
            split,
            self.num_latents,
        )

    def held_out_batch_size(self, windows: ImageDataset, batch_size: int, world_size: int) -> int:
        """Return the batch size of all ranks; no more than a pass, or a repeated image would be its own negative."""
        num = len(windows.rows)
        if num < max(2, world_size):
            found = f"{num} held-out images are too few to be compared on {world_size} processes"
            raise ValueError(f"split {windows.split!r}: {found}: hold out more images")
        return min(world_size * batch_size, num)

    def content(self, rows: np.ndarray) -> Content | None:
        """Return the exact sums of the pixels of these images; None if they are not packed."""
        return self.images.content(rows) if isinstance(self.images, PackedImages) else None

    def statistics(self, split: str | None) -> tuple[Float[Tensor, " C"], Float[Tensor, " C"]]:
        """Return mean and deviation per channel of the pixels of a split, in [0, 1]; None: of all."""
        mean, std = self.images.statistics(self.rows(split))
        return torch.from_numpy(mean).float(), torch.from_numpy(std).float()
