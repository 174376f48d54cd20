"""Images as a modality: source -> packed cache -> patches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from cpc.config.argument_rules import Count, Positive, Share
from cpc.data.images.corpus import ImageCorpus
from cpc.data.images.patch_augmentation import FRAMELESS, Augmentation
from cpc.data.images.probe_data import ImageProbeData
from cpc.data.images.sources import DEFAULT_VALID_SHARE, read_image_source
from cpc.data.images.table import tabulate
from cpc.data.map_style import MapStyleModality
from cpc.data.store.shards import is_sharded


@dataclass(kw_only=True)
class Images(MapStyleModality):
    """Images as grids of patches.

    Args:
        source: a folder of images, an npz file or a folder of them, `NAME:ROOT` for a data set of torchvision
            (`cpc.data.read_image_source` says how folders and arrays are laid out), or the folder or URL of a corpus in
            shards (`cpc data shard`).
        image_size: side of the square that is cut into patches.
        load_size: side of decoded images, from which training cuts random squares; null: `image_size`.
        augmentation: augmentation of each patch: `none`, `light`, `v1` or `v2` (`cpc.data.images.patch_augmentation`).
        flip: mirror half of the training images.
        train_split: split to train on: `train`, or `unlabelled` if the source has it.
        valid_share: share of `train_split` that is held out as split `valid`, if the source has no split `valid`.
        packed: decode all images once into a uint8 memory map; false decodes images at every read.
        cache_dir: folder for the memory map; null: beside the source. For shards of a URL: ~/.cache/cpc/shards.
        cache_gb: largest size of the shards of a URL on disk, in 1e9 bytes. Batches draw from all shards, so the limit
            should hold the whole corpus.
        seed: seed of the batches and of all augmentation.
    """

    name = "image"
    unit = "images"
    size_option = "image_size"
    held_out_options: ClassVar[tuple[str, ...]] = ("batch_size", "image_size", "load_size", "valid_share")

    source: str
    image_size: Count
    load_size: Count | None = None
    augmentation: Augmentation = "v1"
    flip: bool = False
    batch_size: Count = 32
    valid_share: Share = DEFAULT_VALID_SHARE
    packed: bool = True
    cache_gb: Positive = 50.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.packed and (self.cache_dir is not None or self.skip_bad or is_sharded(self.source)):
            raise ValueError("`packed`=false is for image files, without shards, `cache_dir` and `skip_bad`")
        if self.load_size is not None and self.load_size < self.image_size:
            sizes = f"`load_size`={self.load_size} is smaller than `image_size`={self.image_size}"
            raise ValueError(f"{sizes}, which is cut out of it")

    @property
    def cut(self) -> dict[str, int]:
        """The side of decoded images (`load_size`), and of the square that is cut out of them (`image_size`)."""
        return {"image_size": self.image_size, "load_size": self.load_size or self.image_size}

    def check(self, model: Any) -> None:
        """Also raise an error if the grid is too small for the predictions, or the trunk would see frames as edges.

        Warn if contexts contain pixels of the latents that they predict.
        """
        super().check(model)
        trunk = getattr(model.encoder, "trunk", None)
        if self.augmentation not in FRAMELESS and not getattr(trunk, "takes_frames", True):
            what = f"`augmentation`={self.augmentation!r} frames patches, whose edges {type(trunk).__name__} reads"
            raise ValueError(f"{what}: set `augmentation` to none or light")
        side = model.encoder.grid.side(self.image_size)
        self.check_reach(model, side, f"`image_size`={self.image_size} gives {side} rows of patches")
        self.warn_of_overlap(model, model.encoder.overlapping_rows, "rows", "pixels")

    def open(self, encoder: Any, *, is_training: bool = False) -> ImageCorpus:
        """Return the corpus; for training, set the encoder's `crop_size` to the part of a patch that is shown."""
        table = read_image_source(
            self.source,
            valid_share=self.valid_share,
            valid_from=self.train_split,
            cache_dir=self.cache_dir,
            cache_gb=self.cache_gb,
        )
        corpus = ImageCorpus(self, encoder, table)
        if is_training:
            crop_size = corpus.patches.crop_size
            if encoder.crop_size not in (None, crop_size):
                shown = f"`augmentation`={self.augmentation!r} shows {crop_size or 'all'} pixels of a patch"
                raise ValueError(f"`encoder.crop_size`={encoder.crop_size}, but {shown}: leave crop_size out")
            encoder.crop_size = crop_size  # whole images get their frames later, as in training
        return corpus

    def online_tasks(self, corpus: ImageCorpus) -> Mapping[str, Sequence[str]]:
        """Return `class`, if images of the training split have labels."""
        labels = corpus.table.labels[corpus.table.rows(self.train_split)]
        return {"class": corpus.table.classes if (labels >= 0).any() else []}

    def probe_data(self, encoder: Any, corpus: Any, **where: Any) -> ImageProbeData:  # noqa: D102
        return ImageProbeData(corpus or ImageCorpus(self, encoder, tabulate(Path(), [])), **where)
