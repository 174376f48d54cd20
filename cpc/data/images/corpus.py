"""Images as training and evaluation use them: a source cut by split, batches that resume exactly, patches or pixels.

B images, C channels, S image side.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.data import Dataset

from cpc.data.batch import Batch
from cpc.data.drawn import DrawnCorpus
from cpc.data.images.files import ImageFiles
from cpc.data.images.pack import PackedImages, pack_images
from cpc.data.images.patch_augmentation import PatchAugmentation
from cpc.data.images.sources import DEFAULT_VALID_SHARE, read_image_source
from cpc.data.streams.keyed_draws import keyed_uniforms
from cpc.data.streams.spread import SpreadBatches
from cpc.data.streams.stream import Draw, digest, naming

NUM_INITIALISATION_IMAGES = 64
NUM_KEYS = 2**40  # ways to change an image
Images = PackedImages | ImageFiles
Chance = Literal["none", "images", "patches"]


@dataclass(eq=False)
class ImageDataset(Dataset[Batch]):
    """Images with the changes that training makes to them; an index is a pair (image, key), and the key decides them.

    Args:
        images: where pixels come from.
        sequence_ids: `[n]` an id for every image, the same for those of one sequence.
        image_size: side of the square that is cut out of each image.
        augmentation: how patches are cut and changed; None: whole images are handed on.
        chance: what the key decides: `none`, images are cut in the middle; `images`, where they are cut, and whether
            they are mirrored; `patches`, how patches are changed as well.
        flip: mirror half of the images.
        split: of the corpus, for messages.
        num_latents: of an image, all patches.
    """

    images: Images
    sequence_ids: np.ndarray
    image_size: int
    augmentation: PatchAugmentation | None
    chance: Chance
    flip: bool
    split: str | None = None
    num_latents: int = 0

    def __post_init__(self) -> None:
        self.group_ids = np.full(len(self.sequence_ids), -1)
        self.num_values = self.image_size**2 * self.images.num_channels

    def __getitems__(self, drawn: Sequence[Draw]) -> Batch:
        """All images of a batch; `x` holds patches `[B, H, W, C, P, P]`, or images `[B, C, S, S]`, in [0, 1]."""
        rows = np.array([image for image, _ in drawn])
        keys = np.array([key for _, key in drawn])
        pixels = self._cut(self.images.read(rows), keys)
        x = rearrange(torch.from_numpy(pixels), "b s r c -> b c s r").float() / 255
        if self.augmentation is not None:
            patches = self.augmentation
            x = patches(x, keys) if self.chance == "patches" else patches.without_chance(x)
        return Batch(
            x=x,
            num_valid=self.num_valid(drawn),
            sequence_id=torch.from_numpy(self.sequence_ids[rows]),
            group_id=torch.full((len(rows),), -1),
            labels=rearrange(torch.from_numpy(self.images.labels[rows]), "b -> b 1"),
        )

    def num_valid(self, drawn: Sequence[Draw]) -> Int[Tensor, " B"]:
        """The side of each image."""
        return torch.full((len(drawn),), self.image_size)

    def pixels(self, rows: np.ndarray) -> Float[Tensor, "B C S S"]:
        """Whole images in [0, 1], cut out of the middle."""
        middle = replace(self, augmentation=None, chance="none")
        return middle.__getitems__([(row, 0) for row in rows.tolist()]).x

    def subset(self, rows: np.ndarray) -> "ImageDataset":
        """These images alone, in this order."""
        return replace(self, images=self.images.subset(rows), sequence_ids=self.sequence_ids[rows])

    def with_chance(self, chance: Chance) -> "ImageDataset":
        """The same images, with more or less left to chance."""
        return replace(self, chance=chance)

    @staticmethod
    def collate(rows: Batch) -> Batch:
        """A batch is whole already."""
        return rows

    def _cut(self, pixels: np.ndarray, keys: np.ndarray) -> np.ndarray:
        slack = pixels.shape[1] - self.image_size + 1
        draws = keyed_uniforms(~keys, 3) if self.chance != "none" else np.full((len(keys), 3), 0.5)
        tops, lefts = (np.minimum((draws[:, i] * slack).astype(int), slack - 1) for i in (0, 1))
        mirrored = (draws[:, 2] < 0.5) & self.flip  # in the middle, at 0.5, is no mirror
        cut = np.empty((len(pixels), self.image_size, self.image_size, pixels.shape[3]), np.uint8)
        for image, out, top, left, is_mirrored in zip(pixels, cut, tops, lefts, mirrored, strict=True):
            window = image[top : top + self.image_size, left : left + self.image_size]
            out[...] = window[:, ::-1] if is_mirrored else window
        return cut


@dataclass(eq=False)
class ImageCorpus(DrawnCorpus):
    """The images of a source, in the squares that a model is trained on.

    Pixels are read when images are first asked for; `check` needs none.

    Args:
        geometry: an encoder, or what has its `grid`, `num_channels`, `fully_convolutional` and `pixel_mean`.
        others: as of `cpc.data.Images`; `valid_from` is the split that `valid` is held out from.

    Attributes:
        table: names, labels and splits of all images.
        classes: names by label.

    Raises:
        ValueError: if the source cannot be read, sizes or grid do not fit, or options contradict each other.
    """

    source: str | Path
    geometry: Any
    image_size: int
    load_size: int | None = None
    augmentation: str = "none"
    flip: bool = False
    packed: bool = True
    cache_dir: str | Path | None = None
    skip_bad: bool = False
    valid_share: float = DEFAULT_VALID_SHARE
    valid_from: str | None = None

    def __post_init__(self) -> None:
        if not self.packed and (self.cache_dir is not None or self.skip_bad):
            raise ValueError("`cache_dir` and `skip_bad` are about packed images, but packed=False: leave them out")
        if self.load_size is not None and self.load_size < self.image_size:
            raise ValueError(
                f"load_size={self.load_size} is smaller than image_size={self.image_size}, which is cut out of it"
            )
        if self.geometry.fully_convolutional and self.augmentation != "none":
            raise ValueError(
                f"augmentation={self.augmentation!r} changes patches one by one, but the encoder has "
                "fully_convolutional=True and sees whole images: choose one of them"
            )
        self.geometry.grid.side(self.image_size)
        self.table = read_image_source(self.source, valid_share=self.valid_share, valid_from=self.valid_from)
        self.classes = self.table.classes
        self.load_size = self.load_size or self.image_size
        self._patches()  # refuses an unknown augmentation

    @property
    def crop_size(self) -> int | None:
        """Side of the part of every patch that the model sees, the mean colour around it; None: all of the patch."""
        return self._patches().crop_size

    def check(self, *splits: str | None, needs_speakers: bool = False) -> None:
        """Check the table before decoding: every split has images, and speakers, of which images have none."""
        if needs_speakers:
            raise ValueError(
                "images have no speakers: choose negatives among mixed, mixed_excluding (other images) and "
                "sequence_only (the same image), and the uniform sampler"
            )
        for split in splits:
            self.table.rows(split)

    @cached_property
    def images(self) -> Images:
        """All images of the source; packed here, if they are not yet."""
        num_channels = self.geometry.num_channels
        size = self.load_size or self.image_size
        if self.packed:
            return pack_images(self.table, size, num_channels, self.cache_dir, skip_bad=self.skip_bad)
        return ImageFiles(self.table, size, num_channels)

    def windows(self, split: str | None, *, is_training: bool = False) -> ImageDataset:
        """The images of a split, None of all, changed as training does or not; sequence ids are the table's.

        The encoder's statistics must be set: its mean colour frames sub-crops.
        """
        rows = self.images.rows(split)
        return ImageDataset(
            self.images.subset(rows),
            self.table.sequences[rows],
            self.image_size,
            None if self.geometry.fully_convolutional else self._patches(),
            chance="patches" if is_training else "none",
            flip=self.flip,
            split=split,
            num_latents=self.geometry.grid.side(self.image_size) ** 2,
        )

    def batches(
        self,
        windows: ImageDataset,
        sampler: str,
        batch_size: int,
        num_batches: int,
        seed: int,
        *,
        rank: int = 0,
        world_size: int = 1,
        **of_speakers: object,
    ) -> SpreadBatches:
        """Every image once in each pass, with a key that decides how it is changed this time."""
        if sampler != "uniform":
            raise ValueError(f"sampler={sampler!r} needs speakers, and images have none: images are drawn uniformly")
        names = "\n".join(windows.images.table.names).encode("utf-8", "surrogateescape")
        with naming(windows.split):
            return SpreadBatches(
                windows.sequence_ids,
                noun="image",
                num_starts=NUM_KEYS,
                batch_size=batch_size,
                num_batches=num_batches,
                seed=seed,
                rank=rank,
                world_size=world_size,
                made_from={"images": digest(names)},
            )

    def held_out_batch_size(self, windows: ImageDataset, batch_size: int, world_size: int) -> int:
        """At most one pass: unchanged by chance, an image that came twice would be its own negative."""
        of_one_pass = len(windows.images) // world_size
        if of_one_pass < 2:
            raise ValueError(
                f"split {windows.split!r}: {len(windows.images)} held-out images are too few to be compared with each "
                f"other on {world_size} processes: hold more out, or name another split"
            )
        return min(batch_size, of_one_pass)

    def statistics(self, split: str | None) -> tuple[Float[Tensor, " C"], Float[Tensor, " C"]]:
        """Mean and deviation of the pixels of a split per channel, in [0, 1]; None: of all."""
        mean, std = self.images.subset(self.images.rows(split)).statistics
        return torch.from_numpy(mean).float(), torch.from_numpy(std).float()

    def initialisation_images(self, split: str | None, seed: int) -> Tensor:
        """What the data-dependent initialisation sees: images of the split, as training changes them."""
        windows = self.windows(split, is_training=True)
        num_images = min(NUM_INITIALISATION_IMAGES, len(windows.images))
        drawn = self.batches(windows, "uniform", num_images, 1, seed).batch(0)
        return windows.__getitems__(drawn).x

    def _patches(self) -> PatchAugmentation:
        mean_colour = self.geometry.pixel_mean.detach().cpu().clone()
        return PatchAugmentation(self.augmentation, self.geometry.grid, mean_colour)
