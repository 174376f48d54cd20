"""Probe data of images: classes, means or grids of latents and contexts, pixels, histograms of gradients.

B images of a batch, H rows and W columns of patches, D feature dim.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from einops import rearrange, reduce
from jaxtyping import Float
from torch import Tensor, nn

from cpc.config.argument_rules import Choices
from cpc.config.extras import import_extra
from cpc.data.batch import Batch
from cpc.data.images.corpus import NUM_KEYS, ImageCorpus, ImageDataset
from cpc.data.images.table import find_images, tabulate
from cpc.data.probe_data import FeatureExtractor, Labels, LabelsOf, Precision, ProbeData, autocast
from cpc.data.store.fingerprints import Content

_BATCH_IMAGES = 128
_HOG: dict[str, Any] = {"orientations": 9, "pixels_per_cell": (8, 8), "cells_per_block": (2, 2)}


class ImageFeatures(FeatureExtractor):
    """Features of the images of a corpus, without random augmentation.

    `z` and `c` of a model are means of latents and contexts over the grid, as in van den Oord et al. 2018. `z_grid` and
    `c_grid` hold the vectors of the whole grid side by side, in float16. Without a model the only feature is `pixels`
    in [0, 1], or `hog`, histograms of oriented gradients. `file_features` reads only options and encoder of the corpus.
    """

    dtypes: Mapping[str, str] = {"z_grid": "float16", "c_grid": "float16"}

    def __init__(
        self, features: Sequence[str], model: Any, corpus: ImageCorpus, device: str, precision: Precision
    ) -> None:
        self.features, self.model, self.corpus = features, model, corpus
        self.device, self.precision = device, precision
        if model is None:
            size = corpus.options.image_size
            black = np.zeros((1, corpus.encoder.num_channels, size, size), np.float32)
            self.dims = {features[0]: hand_made_features(features[0], black).shape[1]}
            return
        patch_dims = {name: (model.encoder if name.startswith("z") else model.context).dim for name in features}
        self.dims = {
            name: dim * (corpus.num_latents if name.endswith("grid") else 1) for name, dim in patch_dims.items()
        }

    def num_vectors(self, rows: np.ndarray) -> np.ndarray:
        """Return 1 for each image, 0 for a skipped one."""
        return (~np.isin(rows, list(self.corpus.images.skipped))).astype(np.int64)

    def groups(self, rows: np.ndarray) -> list[np.ndarray]:
        """Return batches of images; each batch is of one split."""
        splits = np.array([self.corpus.table.splits[row] for row in rows.tolist()])
        split_rows = [rows[splits == split] for split in dict.fromkeys(splits.tolist())]
        return [part[i : i + _BATCH_IMAGES] for part in split_rows for i in range(0, len(part), _BATCH_IMAGES)]

    def read(self, rows: np.ndarray) -> Iterator[tuple[int, dict[str, np.ndarray]]]:  # noqa: D102
        features = self._features(self.corpus.observations(rows))
        for i, row in enumerate(rows.tolist()):
            yield row, {name: values[i : i + 1] for name, values in features.items()}

    def geometry(self, feature: str) -> dict[str, Any]:
        """Return the positions of patches in an image, and how the image is cut.

        The image is scaled until its shorter side has `load_size` pixels. The patch in row i and column j begins at
        pixels `i * stride` and `j * stride` of its central square of `image_size`, and has sides of `patch_size`.
        """
        geometry = super().geometry(feature)
        return geometry if self.model is None else geometry | self.model.encoder.geometry | self.corpus.options.cut

    def file_features(self, path: Path) -> Float[np.ndarray, "H W D"]:
        """Return the grid of latents or contexts of an image file."""
        options = replace(self.corpus.options, packed=False, cache_dir=None, skip_bad=False)
        corpus = replace(self.corpus, options=options, table=tabulate(path.parent, [path.name]))
        return self._grids(corpus.windows(None).all_images().x)[self.features[0][0]][0].cpu().numpy()

    @torch.inference_mode()
    def _grids(self, x: Tensor) -> dict[str, Float[Tensor, "B H W D"]]:
        x = x.to(self.device)
        with autocast(x, self.precision):
            latents, contexts, _ = self.model.encode(x)
        return {"z": latents.float(), "c": contexts.float()}

    def _features(self, images: ImageDataset) -> dict[str, Float[np.ndarray, "B D"]]:
        if self.model is None:
            return {self.features[0]: hand_made_features(self.features[0], images.pixels().numpy())}
        grids, features = self._grids(images.all_images().x), {}
        for name in self.features:
            grid = grids[name[0]]
            features[name] = (grid.flatten(1) if name.endswith("grid") else grid.mean((1, 2))).cpu().numpy()
        return features


def hand_made_features(feature: str, pixels: Float[np.ndarray, "B C S S"]) -> Float[np.ndarray, "B D"]:
    """Return the pixels, or `hog`: histograms (Dalal and Triggs 2005) in cells of 8 x 8, by scikit-image."""
    if feature == "pixels":
        return pixels.reshape(len(pixels), -1)
    hog = import_extra("skimage.feature", "image", "features 'hog' need scikit-image").hog
    smallest = _HOG["pixels_per_cell"][0] * _HOG["cells_per_block"][0]
    if pixels.shape[2] < smallest:
        raise ValueError(f"features 'hog' need images of at least {smallest} pixels, but these have {pixels.shape[2]}")
    return np.stack([hog(image.transpose(1, 2, 0), channel_axis=-1, **_HOG) for image in pixels])


class ImageProbeData(ProbeData):
    """Features of whole images, probed for their class; the corpus is empty if only files outside it are read."""

    unit = source_unit = "image"
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
    def splits(self) -> Sequence[str]:  # noqa: D102
        return self.corpus.splits

    def labels(self, task: str, rows: np.ndarray) -> Labels:
        """Return the class of each image."""
        if task != "class":
            raise ValueError(f"task={task!r} is unknown for images: set `task` to class")
        labels, classes = self.corpus.table.labels, self.corpus.table.classes
        return Labels({row: classes[labels[row]] for row in rows.tolist() if labels[row] >= 0}, classes)

    def feature_extractor(self, features: Sequence[str], model: Any = None) -> ImageFeatures:
        """Return an extractor: of a model's means and grids, in one pass; or of pixels or histograms."""
        return ImageFeatures(features, model, self.corpus, self.device, self.precision)

    def find_files(self, folder: Path) -> list[str]:  # noqa: D102
        return find_images(folder)

    def name(self, row: int) -> str:  # noqa: D102
        return self.corpus.table.names[row]

    def clusters(self, task: str, train: np.ndarray, test: np.ndarray) -> tuple[str, np.ndarray]:
        """Return sequences, such as the overlapping crops of a photograph or the frames of a film."""
        return "sequence", self.groups(task)

    def groups(self, task: str) -> np.ndarray:  # noqa: D102
        return self.corpus.table.sequences

    def content(self, rows: np.ndarray) -> Content | None:  # noqa: D102
        return self.corpus.content(rows)

    def initialise(self, model: Any, seed: int) -> None:
        """Initialise from the probed model's pixel statistics and from images of the training split."""
        trained = self.corpus.encoder
        model.encoder.set_statistics(trained.pixel_mean, trained.pixel_std)
        num = self.corpus.options.num_initialisation
        model.initialise_from(self.corpus.initialisation_windows(self.train_split, num, seed))

    def trained(self, model: Any) -> list[nn.Module]:
        """Return only the encoder, because supervised training uses no context."""
        return [model.encoder]

    def batches(self, rows: np.ndarray, labels: LabelsOf, model: Any, protocol: Any) -> Iterator[Batch]:
        """Yield passes over the images, cut and mirrored as in pretraining; patches are not augmented."""
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
        """Return the mean of the latents over the grid, or all latents if `supervised_feature` is `z_grid`.

        Vectors are `[B, 1, D]`; the mask is True everywhere.
        """
        with autocast(batch.x, self.precision):
            latents = model.encoder(batch.x).float()
        Choices(("z", "z_grid")).check("`supervised_feature`", self.supervised_feature)
        is_grid = self.supervised_feature == "z_grid"
        vectors = rearrange(latents, "b ... -> b 1 (...)") if is_grid else reduce(latents, "b h w d -> b 1 d", "mean")
        return vectors, torch.ones(vectors.shape[:2], dtype=torch.bool, device=vectors.device)

    def record(self) -> dict[str, Any]:
        """Return how images are cut, and the number of skipped ones."""
        return {**self.corpus.options.cut, "num_skipped": len(self.corpus.images.skipped)}
