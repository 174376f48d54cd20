"""Images' features, task and baselines: means or grids of latents and contexts, classes, pixels, gradients' histograms.

B images of a batch, H rows and W columns of patches, D feature dim.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from einops import rearrange, reduce
from jaxtyping import Float
from torch import Tensor, nn

from cpc.config.extras import install_hint
from cpc.data.batch import Batch
from cpc.data.images.corpus import ImageCorpus
from cpc.data.images.dataset import NUM_KEYS, ImageDataset
from cpc.data.images.folder import find_images, tabulate
from cpc.data.probe_data import FeatureExtractor, Labels, LabelsOf, Precision, ProbeData

_BATCH_IMAGES = 128
_HOG: dict[str, Any] = {"orientations": 9, "pixels_per_cell": (8, 8), "cells_per_block": (2, 2)}


class CorpusImages(FeatureExtractor):
    """A pass over the images of a corpus, unchanged by chance.

    Args:
        corpus: the images.
    """

    def __init__(self, corpus: ImageCorpus) -> None:
        self.corpus = corpus

    def num_vectors(self, rows: np.ndarray) -> np.ndarray:
        """1, or 0 of an image that was skipped."""
        return (~np.isin(rows, list(self.corpus.images.skipped))).astype(np.int64)

    def groups(self, rows: np.ndarray) -> list[np.ndarray]:
        """Batches of images of one split."""
        splits = np.array([self.corpus.table.splits[row] for row in rows.tolist()])
        of_splits = [rows[splits == split] for split in dict.fromkeys(splits.tolist())]
        return [part[i : i + _BATCH_IMAGES] for part in of_splits for i in range(0, len(part), _BATCH_IMAGES)]

    def read(self, rows: np.ndarray) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """A batch of images."""
        found = self.image_features(self.corpus.observations(rows))
        for i, row in enumerate(rows.tolist()):
            yield row, {name: values[i : i + 1] for name, values in found.items()}

    @abstractmethod
    def image_features(self, images: ImageDataset) -> dict[str, Float[np.ndarray, "B D"]]:
        """The features of some images."""


class LearntImages(CorpusImages):
    """What a model says about images, unchanged by chance.

    `z` and `c` are means of latents and contexts over the grid, as van den Oord et al. 2018 read z; `z_grid` and
    `c_grid` hold all of them side by side, in float16.

    Args:
        features: of these four.
        model: in eval mode.
        corpus: the images; none are needed for `file_features`.
        device: where the model is.
        precision: of the model's products.
    """

    dtypes: Mapping[str, str] = {"z_grid": "float16", "c_grid": "float16"}

    def __init__(
        self, features: Sequence[str], model: Any, corpus: ImageCorpus, device: str, precision: Precision
    ) -> None:
        super().__init__(corpus)
        self.features, self.model = features, model
        self.device, self.precision = device, precision
        of_patch = {name: (model.encoder if name.startswith("z") else model.context).dim for name in features}
        self.dims = {name: dim * (corpus.num_latents if name.endswith("grid") else 1) for name, dim in of_patch.items()}

    def image_features(self, images: ImageDataset) -> dict[str, Float[np.ndarray, "B D"]]:
        """Each grid side by side, or its mean."""
        latents, contexts = self._grids(images.everything().x)
        grids = {name: latents if name.startswith("z") else contexts for name in self.features}
        return {
            name: (grid.flatten(1) if name.endswith("grid") else grid.mean((1, 2))).cpu().numpy()
            for name, grid in grids.items()
        }

    def geometry(self, feature: str) -> dict[str, Any]:
        """Where patches lie in an image, and how it is cut: row i and column j are the `patch_size` pixels from
        `i * stride` and `j * stride` of the central `image_size`, once the shorter side has `load_size` pixels.
        """
        return super().geometry(feature) | self.model.encoder.geometry | self.corpus.options.cut

    def file_features(self, path: Path) -> Float[np.ndarray, "H W D"]:
        """The grid of latents or contexts of an image file."""
        options = replace(self.corpus.options, packed=False, cache_dir=None, skip_bad=False)
        corpus = replace(self.corpus, options=options, table=tabulate(path.parent, [path.name]))
        latents, contexts = self._grids(corpus.windows(None).everything().x)
        return (latents if self.features[0] == "z" else contexts)[0].cpu().numpy()

    @torch.inference_mode()
    def _grids(self, x: Tensor) -> tuple[Float[Tensor, "B H W D"], Float[Tensor, "B H W C"]]:
        x = x.to(self.device)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
            latents, contexts, _ = self.model.encode(x)
        return latents.float(), contexts.float()


class HandMadeImages(CorpusImages):
    """Pixels in [0, 1], or histograms of oriented gradients (Dalal and Triggs 2005) in cells of 8 x 8, by scikit-image.

    Args:
        feature: `pixels` or `hog`.
        corpus: the images.

    Raises:
        ValueError: if `hog` is asked for without scikit-image, or of images smaller than a block of cells.
    """

    def __init__(self, feature: str, corpus: ImageCorpus) -> None:
        super().__init__(corpus)
        self.feature, image_size = feature, corpus.options.image_size
        if feature == "pixels":
            self.dims = {feature: corpus.encoder.num_channels * image_size**2}
            return
        try:
            from skimage.feature import hog
        except ImportError as error:
            raise ValueError(f"features 'hog' need scikit-image: {install_hint('image')}") from error
        smallest = _HOG["pixels_per_cell"][0] * _HOG["cells_per_block"][0]
        if image_size < smallest:
            raise ValueError(
                f"features 'hog' need images of at least {smallest} pixels, these have {image_size}: leave hog out"
            )
        self._hog = hog
        self.dims = {feature: hog(np.zeros((image_size, image_size)), **_HOG).size}

    def image_features(self, images: ImageDataset) -> dict[str, Float[np.ndarray, "B D"]]:
        """From the middle of each image."""
        pixels = images.pixels().numpy()
        if self.feature == "pixels":
            return {"pixels": pixels.reshape(len(pixels), -1)}
        return {"hog": np.stack([self._hog(image.transpose(1, 2, 0), channel_axis=-1, **_HOG) for image in pixels])}


class ImageProbeData(ProbeData):
    """Features of whole images, probed for their class. The mean over z, as in van den Oord et al. 2018, is `cpc`.

    Args:
        corpus: the images, cut as the model's run cut them; empty where only files outside a corpus are read.
        where: as `ProbeData` takes it.
    """

    unit = "image"
    features: Mapping[str, str] = {"z": "", "z_grid": "_grid", "c": "_c", "c_grid": "_c_grid"}
    hand_made = ("pixels", "hog")
    default_features = ("z", "z_grid", "c")
    default_baselines = ("majority", "random", "pixels", "supervised")
    supervised: Mapping[str, Any] = dict(num_epochs=20, min_steps=300, batch_size=64, weight_decay=1e-4, norm="layer")
    supervised_feature = "z"

    def __init__(self, corpus: ImageCorpus, **where: Any) -> None:
        super().__init__(**where)
        self.corpus = corpus

    @property
    def splits(self) -> Sequence[str]:
        """The table's."""
        return self.corpus.table.splits

    def labels(self, task: str, rows: np.ndarray) -> Labels:
        """The class of each image."""
        if task != "class":
            raise ValueError(f"task={task!r}: images are probed for their class: set `task` to class")
        labels, classes = self.corpus.table.labels, self.corpus.table.classes
        return Labels({row: classes[labels[row]] for row in rows.tolist() if labels[row] >= 0}, classes)

    def front_end(self, features: Sequence[str], model: Any = None) -> FeatureExtractor:
        """Means and grids of a model in one pass; or pixels, or histograms."""
        if model is None:
            return HandMadeImages(features[0], self.corpus)
        return LearntImages(features, model, self.corpus, self.device, self.precision)

    def find_files(self, folder: Path) -> list[str]:
        """By their suffix."""
        return find_images(folder)

    def name(self, row: int) -> str:
        """The image's."""
        return self.corpus.table.names[row]

    def clusters(self, task: str, train: np.ndarray, test: np.ndarray) -> tuple[str, np.ndarray]:
        """Sequences: crops that overlap, frames of a film."""
        return "sequence", self.corpus.table.sequences

    def groups(self, task: str) -> np.ndarray:
        """Sequences, as clusters are."""
        return self.corpus.table.sequences

    def initialise(self, model: Any, seed: int) -> None:
        """By the statistics that the probed model has, and the training split's images."""
        trained = self.corpus.encoder
        model.encoder.set_statistics(trained.pixel_mean, trained.pixel_std)
        data = replace(self.corpus.options, train_split=self.train_split, seed=seed)
        model.initialise_from(data.initialisation_batch(self.corpus))

    def trained(self, model: Any) -> list[nn.Module]:
        """The encoder."""
        return [model.encoder]

    def batches(self, rows: np.ndarray, labels: LabelsOf, model: Any, protocol: Any) -> Iterator[Batch]:
        """Passes over the images, cut and mirrored as in pretraining; their patches are not changed."""
        rows = rows[np.isin(rows, self.corpus.rows(None))]
        images = self.corpus.observations(rows, "images")
        batch_size = min(protocol.batch_size, len(rows))
        rng = np.random.default_rng(protocol.seed)
        while True:
            order = rng.permutation(len(rows))
            for start in range(0, len(order) - batch_size + 1, batch_size):
                chosen = order[start : start + batch_size]
                keys = rng.integers(0, NUM_KEYS, batch_size)
                classes = np.stack([labels(row, None, 0, 1) for row in rows[chosen].tolist()])
                batch = images.__getitems__(list(zip(chosen.tolist(), keys.tolist(), strict=True)))
                yield batch._replace(labels=torch.from_numpy(classes))

    def vectors(self, model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        """The mean of the latents over the grid, `[B, 1, D]`."""
        with torch.autocast(batch.x.device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
            latents = model.encoder(batch.x)
        means = rearrange(reduce(latents.float(), "b h w d -> b d", "mean"), "b d -> b 1 d")
        return means, torch.ones(means.shape[:2], dtype=torch.bool, device=means.device)

    def record(self) -> dict[str, Any]:
        """How images are cut."""
        return {**self.corpus.options.cut, "num_skipped": len(self.corpus.images.skipped)}
