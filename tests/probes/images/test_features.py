import sys
from collections.abc import Callable

import numpy as np
import pytest
import skimage.feature
import torch

import cpc
from cpc.contexts.grid import orient, restore
from cpc.data.images.corpus import ImageCorpus
from cpc.probes.images import features
from cpc.probes.images.features import READOUTS, check_hog, hog, hog_dim, learnt_features, pixels

PixelsOf = Callable[[str], np.ndarray]


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
    monkeypatch.setattr(features, "_BATCH_IMAGES", 4)  # 14 images: the last batch is not full
    found = learnt_features(model, corpus.windows("test"), READOUTS, progress=False)
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


def test_rounded_products_are_near(model: cpc.CPC, corpus: ImageCorpus) -> None:
    windows = corpus.windows("test")
    exact, rough = (
        learnt_features(model, windows, ("c",), precision=precision, progress=False)["c"]
        for precision in ("float32", "bfloat16")
    )
    assert 0 < np.abs(rough - exact).max() < 0.1


def test_pixels_are_the_middle_of_the_images(
    corpus: ImageCorpus, pixels_of: PixelsOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "_BLOCK_IMAGES", 4)
    found = pixels(corpus.windows("test"))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, pixels_of("test").reshape(14, -1), atol=1e-7)


def test_gradients_point_across_the_bars(corpus: ImageCorpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine directions of 20 degrees: brightness that changes along columns is in the first, along rows in the fifth."""
    monkeypatch.setattr(features, "_BLOCK_IMAGES", 4)
    found = hog(corpus.windows("test"))
    assert found.shape == (14, 2 * 2 * 2 * 2 * 9)  # blocks, cells of a block, directions
    assert found.dtype == np.float32
    for size in (16, 23, 24, 40):
        assert hog_dim(size) == len(skimage.feature.hog(np.zeros((size, size)), 9, (8, 8), (2, 2)))
    directions = found.reshape(14, -1, 9).sum(1)
    labels = corpus.windows("test").images.labels
    assert directions.argmax(1).tolist() == np.where(labels == 0, 0, 4).tolist()


def test_what_histograms_of_gradients_need(monkeypatch: pytest.MonkeyPatch, corpus: ImageCorpus) -> None:
    check_hog(16)
    with pytest.raises(ValueError, match="images of at least 16 pixels, these have 15: leave hog out"):
        check_hog(15)
    monkeypatch.setitem(sys.modules, "skimage.feature", None)
    for ask in (lambda: check_hog(24), lambda: hog(corpus.windows("test"))):
        with pytest.raises(ValueError, match=r"need scikit-image: install it with .*cpc\[image\]"):
            ask()
