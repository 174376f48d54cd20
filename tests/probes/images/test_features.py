"""What probes read of images: once more by plain loops."""

import sys
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import skimage.feature
import torch
from opened import stored
from refusals import refuses

import cpc
from cpc.contexts.grid import orient, restore
from cpc.data.images import probe_data
from cpc.data.images.corpus import ImageCorpus
from cpc.data.images.probe_data import ImageFeatures, ImageProbeData
from cpc.probes import Extraction, FeatureStore, Task
from cpc.probes.task import UNSEEN

PixelsOf = Callable[[str], np.ndarray]


def read(corpus: ImageCorpus, *features: str, model: Any = None, **where: Any) -> dict[str, np.ndarray]:
    images_probe_data = ImageProbeData(corpus, **where)
    rows = corpus.table.rows("test")
    return dict(
        FeatureStore.extract(
            images_probe_data.feature_extractor(features, model),
            rows,
            images_probe_data.name,
            Extraction(progress=False),
        ).values
    )


def framed(patch: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """A patch of 16 as v1 shows it to be judged by: 15 pixels, and the mean colour in the last row and column."""
    shown = np.broadcast_to(mean[:, None, None], patch.shape).copy()
    shown[:, :15, :15] = patch[:, :15, :15]
    return shown


def by_plain_loops(model: cpc.CPC, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`[n, 2, 2, D]` latents and `[n, 2, 2, C]` contexts: patch by patch, image by image, direction by direction."""
    mean, std = model.encoder.pixel_mean.numpy(), model.encoder.pixel_std.numpy()
    latents = np.zeros((len(images), 2, 2, model.encoder.dim), np.float32)
    for image, row, column in np.ndindex(len(images), 2, 2):
        patch = framed(images[image, :, 8 * row : 8 * row + 16, 8 * column : 8 * column + 16], mean)
        x = torch.from_numpy((patch - mean[:, None, None]) / std[:, None, None])[None]
        latents[image, row, column] = model.encoder.trunk(x)[0].mean((1, 2)).numpy()
    contexts = []
    for z in torch.from_numpy(latents):
        of_directions = [
            restore(network(orient(z[None], direction)), direction)[0]
            for direction, network in zip(("down", "left"), model.context.networks, strict=True)
        ]
        contexts.append(torch.cat(of_directions, -1).numpy())
    return latents, np.stack(contexts)


@torch.no_grad()
def test_features_are_those_of_plain_loops(
    model: cpc.CPC, corpus: ImageCorpus, pixels_of: PixelsOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_data, "_BATCH_IMAGES", 4)  # 14 images: the last batch is not full
    found = read(corpus, "z", "z_grid", "c", "c_grid", model=model)
    latents, contexts = by_plain_loops(model, pixels_of("test"))
    assert {name: values.dtype.name for name, values in found.items()} == {
        "z": "float32",
        "z_grid": "float16",
        "c": "float32",
        "c_grid": "float16",
    }
    np.testing.assert_allclose(found["z"], latents.mean((1, 2)), atol=1e-5)
    np.testing.assert_allclose(found["c"], contexts.mean((1, 2)), atol=1e-5)
    np.testing.assert_allclose(found["z_grid"], latents.reshape(14, -1), rtol=2**-10, atol=1e-5)
    np.testing.assert_allclose(found["c_grid"], contexts.reshape(14, -1), rtol=2**-10, atol=1e-5)
    assert np.abs(latents).mean() > 0.1
    assert latents.std(0).min() > 1e-3  # images and patches differ, so that their order matters


def test_pixels_are_of_the_middle(corpus: ImageCorpus, pixels_of: PixelsOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_data, "_BATCH_IMAGES", 4)
    found = read(corpus, "pixels")["pixels"]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, pixels_of("test").reshape(14, -1), atol=1e-7)


def test_gradients_point_across_the_bars(corpus: ImageCorpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine directions of 20 degrees: brightness that changes along columns is in the first, along rows in the fifth."""
    monkeypatch.setattr(probe_data, "_BATCH_IMAGES", 4)
    found = read(corpus, "hog")["hog"]
    assert found.shape == (14, 2 * 2 * 2 * 2 * 9)  # blocks, cells of a block, directions
    assert found.dtype == np.float32
    for size in (16, 23, 24, 40):
        corpus.options.image_size = size
        (dim,) = ImageFeatures(["hog"], None, corpus, "cpu", "float32").dims.values()
        assert dim == len(skimage.feature.hog(np.zeros((size, size)), 9, (8, 8), (2, 2)))
    directions = found.reshape(14, -1, 9).sum(1)
    labels = corpus.windows("test").labels
    assert directions.argmax(1).tolist() == np.where(labels == 0, 0, 4).tolist()


def test_what_histograms_of_gradients_need(monkeypatch: pytest.MonkeyPatch, corpus: ImageCorpus) -> None:
    corpus.options.image_size = 15
    refuses("images of at least 16 pixels, but these have 15", ImageFeatures, ["hog"], None, corpus, "cpu", "float32")
    monkeypatch.setitem(sys.modules, "skimage.feature", None)
    with pytest.raises(
        ValueError, match=r"need scikit-image: install it with .*contrastive-predictive-coding\[image\]"
    ):
        ImageFeatures(["hog"], None, corpus, "cpu", "float32")


def test_images_of_each_split_with_their_labels(labelled_corpus: Callable[..., ImageCorpus]) -> None:
    """Images without a label are left out, classes that training has not are marked; intervals resample sequences."""
    labels = {"train": [2, -1, 0, 2, -1], "test": [1, 2, -1], "valid": [0, 1]}
    corpus = labelled_corpus(["a", "b", "c"], sequence=np.arange(10) // 2 + 7, **labels)
    task = Task("class", ImageProbeData(corpus))
    assert task.classes == ["a", "c"]
    store = stored(task, ["pixels"])
    train, test = task.examples("train", store, "pixels"), task.examples("test", store, "pixels")
    assert (train.labels.tolist(), test.labels.tolist()) == ([1, 0, 1], [UNSEEN, 1])
    assert (train.clusters.tolist(), test.clusters.tolist()) == ([0, 2, 2], [4, 6])
    assert (255 * train.values[train.indices, 0]).round().tolist() == [30, 10, 30]  # pixels and labels stay together
    assert (255 * test.values[test.indices, 0]).round().tolist() == [20, 30]
    assert task.num_unlabelled == {"train": 2, "test": 1}
    assert Task("class", ImageProbeData(corpus, train_split="valid"), test_split="train").classes == ["a", "b"]


OpenCorpus = Callable[..., ImageCorpus]


def test_subsets_are_nested_and_take_the_same_share_of_each_class(labelled_corpus: OpenCorpus) -> None:
    labels = [0] * 50 + [1] * 20 + [2] * 3
    shuffled = np.random.default_rng(0).permutation(labels)
    task = Task("class", ImageProbeData(labelled_corpus(train=shuffled.tolist(), test=[0, 1])))
    shares = (0.01, 0.1, 0.2, 0.5, 0.8, 1.0)
    rows = [task.subset(share).train for share in shares]
    for smaller, larger in pairwise(rows):
        assert set(smaller.tolist()) < set(larger.tolist())
    for share, chosen in zip(shares, rows, strict=True):
        assert sorted(set(chosen.tolist())) == chosen.tolist()
        counts = Counter(shuffled[chosen].tolist())
        assert counts == {label: max(1, round(share * labels.count(label))) for label in range(3)}
    assert rows[-1].tolist() == list(range(73))
    assert task.subset(0.5).train.tolist() == rows[3].tolist()
    assert task.subset(0.5, seed=1).train.tolist() != rows[3].tolist()
    for share in (0.0, -0.1, 1.01, float("nan")):
        refuses(rf"`label_shares`={share} must be positive and at most 1", task.subset, share)
