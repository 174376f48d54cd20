"""The images of a source, cut to squares for training and evaluation. C channels."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from cpc.data.images.dataset import Chance, ImageDataset
from cpc.data.images.files import ImageFiles
from cpc.data.images.pack import PackedImages, pack_images
from cpc.data.images.patch_augmentation import PatchAugmentation
from cpc.data.images.table import ImageTable
from cpc.data.map_style import MapStyleCorpus
from cpc.data.store.fingerprints import Content
from cpc.data.store.folders import name_a_few
from cpc.data.streams.spread import SpreadBatches


@dataclass(eq=False)
class ImageCorpus(MapStyleCorpus):
    """Images by split. The first access to `images` reads pixels; `check` does not.

    Args:
        options: a `cpc.data.Images`.
        encoder: an encoder, or an object with its `grid`, `num_channels`, `fully_convolutional` and `pixel_mean`.
        table: names, labels and splits of all images.

    Raises:
        ValueError: if sizes and grid do not fit, or if patches are augmented for a fully convolutional encoder.
    """

    options: Any
    encoder: Any
    table: ImageTable
    nouns = ("speaker", "image")
    uniform = SpreadBatches

    def __post_init__(self) -> None:
        if self.encoder.fully_convolutional and self.options.augmentation != "none":
            raise ValueError(
                f"augmentation={self.options.augmentation!r} changes patches one by one, but the encoder has "
                "fully_convolutional=True and reads whole images: choose one of the two"
            )
        self.num_latents = self.encoder.grid.side(self.options.image_size) ** 2
        _ = self.patches  # raises an error if the augmentation is unknown

    @property
    def patches(self) -> PatchAugmentation:
        """The cut and augmentation of patches. Frames get the encoder's mean colour, so set its statistics first."""
        mean_colour = self.encoder.pixel_mean.detach().cpu().clone()
        return PatchAugmentation(self.options.augmentation, self.encoder.grid, mean_colour)

    def check(self, *splits: str | None, needs_speakers: bool = False) -> None:
        """Check, before decoding, that every split has images and that the strategy does not need speakers."""
        if needs_speakers:
            raise ValueError(
                "images have no speakers: choose a strategy (`loss.negatives`) among mixed, "
                "mixed_excluding (other images) and sequence_only (the same image)"
            )
        for split in splits:
            self.table.rows(split)

    @cached_property
    def images(self) -> PackedImages | ImageFiles:
        """All images of the source. They are packed on first use, unless they are packed already."""
        options, num_channels = self.options, self.encoder.num_channels
        size = options.load_size or options.image_size
        if not options.packed:
            return ImageFiles(self.table, size, num_channels)
        return pack_images(self.table, size, num_channels, options.cache_dir, skip_bad=options.skip_bad)

    def rows(self, split: str | None) -> Int64[np.ndarray, " rows"]:
        """Return the rows of a split whose images were not skipped; None: of all splits.

        Raises:
            ValueError: if the split has no such image.
        """
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
        if len(windows.rows) < max(2, world_size):
            raise ValueError(
                f"split {windows.split!r}: {len(windows.rows)} held-out images are too few to be compared on "
                f"{world_size} processes: hold out more images, or name another split"
            )
        return min(world_size * batch_size, len(windows.rows))

    def content(self, rows: np.ndarray) -> Content | None:
        """Return the exact sums of the pixels of these images; None if they are not packed."""
        return self.images.content(rows) if isinstance(self.images, PackedImages) else None

    def statistics(self, split: str | None) -> tuple[Float[Tensor, " C"], Float[Tensor, " C"]]:
        """Return mean and deviation per channel of the pixels of a split, in [0, 1]; None: of all."""
        mean, std = self.images.statistics(self.rows(split))
        return torch.from_numpy(mean).float(), torch.from_numpy(std).float()
