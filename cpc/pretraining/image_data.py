"""Images for training: source -> packed cache -> patches -> batches that resume exactly."""

import warnings
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from cpc.data.images.corpus import ImageCorpus, ImageDataset, ImageGeometry
from cpc.data.images.patch_augmentation import Augmentation
from cpc.data.images.sources import DEFAULT_VALID_SHARE
from cpc.data.streams.stream import Draw
from cpc.encoders.patches import PatchEncoder
from cpc.evaluation import ImageProtocol
from cpc.model import CPC
from cpc.pretraining.window_data import WindowData


class ImageData(WindowData):
    """Images as grids of patches; its arguments are the `data` section of a config with `modality: image`.

    Args:
        source: a folder of images, an npz file or a folder of them, or `NAME:ROOT` for a data set of torchvision
            (`cpc.data.read_image_source` says how folders and arrays are laid out).
        image_size: side of the square that is cut into patches.
        load_size: side that images are kept at, from which training cuts at random; null: `image_size`.
        augmentation: of every patch by itself: `none`, `v1` or `v2` (`cpc.data.images.patch_augmentation`).
        flip: mirror half of the training images.
        batch_size: images per batch and device.
        train_split: what is trained on: `train`, or `unlabelled` where there is such a part.
        eval_split: the held-out part for the bound, another one.
        eval_batches: batches of one held-out evaluation and device, the same ones every time; one pass at most.
        valid_share: of the images of `train_split`, held out as split `valid` where the source has none.
        num_workers: loader processes; 0 loads in the training process.
        packed: decode everything once into a uint8 memory map; false decodes images on the fly.
        cache_dir: where the map goes; null: beside the source.
        skip_bad: go on without files that cannot be used, and say how many.
        seed: of the batches and of all changes to images.
    """

    modality = "image"
    unit = "images"
    size_option = "data.image_size"

    def __init__(
        self,
        source: str,
        image_size: int,
        load_size: int | None = None,
        augmentation: Augmentation = "v1",
        flip: bool = False,
        batch_size: int = 32,
        train_split: str = "train",
        eval_split: str = "valid",
        eval_batches: int = 16,
        valid_share: float = DEFAULT_VALID_SHARE,
        num_workers: int = 0,
        packed: bool = True,
        cache_dir: str | None = None,
        skip_bad: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(batch_size, train_split, eval_split, eval_batches, num_workers, seed)
        self._source = source
        self.image_size = image_size
        self.load_size = load_size
        self.augmentation = augmentation
        self.flip = flip
        self.valid_share = valid_share
        self.packed = packed
        self.cache_dir = cache_dir
        self.skip_bad = skip_bad

    @property
    def source(self) -> str:
        """The folder, file or data set."""
        return self._source

    @property
    def protocol(self) -> ImageProtocol:
        """Held-out images are drawn uniformly and not changed."""
        return ImageProtocol(
            split=self.eval_split,
            batch_size=self.batch_size,
            image_size=self.image_size,
            load_size=self.load_size,
            augmentation=self.augmentation,
            flip=self.flip,
            valid_share=self.valid_share,
            valid_from=self.train_split,
            packed=self.packed,
        )

    @property
    def settings(self) -> dict[str, Any]:
        """Also what is cut out of images, and how it is changed."""
        names = ("image_size", "load_size", "augmentation", "flip", "valid_share")
        return super().settings | {f"data.{name}": getattr(self, name) for name in names}

    def class_names(self, task: str) -> list[str]:
        """The classes of the images, for the online probe of task `class`.

        Raises:
            ValueError: on another task, or if the source has no labels, or none where training is.
        """
        if task != "class":
            raise ValueError(f"an online probe of images has the task 'class', not {task!r}")
        table = self.corpus.table
        if (table.labels[table.rows(self.train_split)] < 0).all():
            raise ValueError(
                f"an online probe of classes learns from labels, and split {self.train_split!r} of {self.source} has "
                "none: leave the probe out with --trainer.callbacks null"
            )
        return self.corpus.classes

    def initialisation_batch(self) -> Tensor:
        """Images as training changes them."""
        return self.corpus.initialisation_images(self.train_split, self.seed)

    def _open(self, encoder: PatchEncoder) -> ImageCorpus:
        corpus = self.protocol.corpus(self.source, encoder, cache_dir=self.cache_dir, skip_bad=self.skip_bad)
        if encoder.crop_size not in (None, corpus.crop_size):
            raise ValueError(
                f"model.encoder.init_args.crop_size={encoder.crop_size}, but data.augmentation={self.augmentation!r} "
                f"shows {corpus.crop_size or 'all'} pixels of a patch: leave crop_size out, training sets it"
            )
        encoder.crop_size = corpus.crop_size  # so that the model, given whole images, frames patches as it was taught
        return corpus

    def _check_length(self, model: CPC) -> None:
        side, furthest = model.encoder.grid.side(self.image_size), model.steps[-1].k
        if side <= furthest:
            raise ValueError(
                f"data.image_size={self.image_size} gives {side} rows of patches, but the model predicts {furthest} "
                "rows ahead: lower model.predictor.init_args.num_steps or model.loss.init_args.skip_steps, or "
                "cut finer patches"
            )
        skipped, overlapping = model.loss_part.skip_steps, model.encoder.overlapping_rows
        if skipped < overlapping:
            warnings.warn(
                f"model.loss.init_args.skip_steps={skipped}, but latents of the next {overlapping} rows share pixels "
                "with a row: what contexts have seen is predicted, and the bound counts it; skip as many to predict "
                "unseen pixels alone",
                stacklevel=2,
            )

    def _size(self, encoder: PatchEncoder) -> tuple[int, int, int]:
        side = encoder.grid.side(self.image_size)
        return encoder.num_channels * self.image_size**2, side, side

    def _identities(
        self, encoder: ImageGeometry, windows: ImageDataset, drawn: list[Draw]
    ) -> tuple[Int[Tensor, " B"], Int[Tensor, " B"], Int[Tensor, " B"]]:
        ids = torch.from_numpy(windows.sequence_ids[[image for image, _ in drawn]])
        num_latents = encoder.grid.side(self.image_size) ** 2
        return torch.full_like(ids, num_latents), ids, torch.full_like(ids, -1)
