"""Gratings, whose direction is their class: easy for gradients, hard for pixels; and a tiny model of patches."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from opened import BOUND

import cpc
from cpc.contexts import PixelCNN
from cpc.data import Images
from cpc.data.images.corpus import ImageCorpus
from cpc.encoders import PatchEncoder, TinyTrunk
from cpc.predictors import Bilinear

SIDE = 28  # of the images; models see the 24 in the middle
IMAGE_SIZE = 24
CLASSES = ["columns", "rows"]
SPLITS = ["train"] * 30 + ["valid"] * 8 + ["test"] * 14 + ["unlabelled"] * 4
OF_THE_RUN = Images(source="unknown", batch_size=4, image_size=IMAGE_SIZE, load_size=SIDE, flip=True).saved_settings


def tiny_model(seed: int = 0, *, fully_convolutional: bool = False) -> cpc.CPC:
    """Patches of 16 every 8 of 24 pixels: a grid of 2 x 2."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        trunk = TinyTrunk(dim=12, strides=(4, 1), widths=(8, 8))
        encoder = PatchEncoder(trunk, patch_size=16, stride=8, fully_convolutional=fully_convolutional)
        model = cpc.CPC(encoder, PixelCNN(5, 2, 5, ("down", "left")), Bilinear(num_steps=1))
        model.encoder.set_statistics(torch.tensor([0.5, 0.4, 0.6]), torch.tensor([0.2, 0.3, 0.25]))
        model.initialise_from(torch.rand(16, 3, IMAGE_SIZE, IMAGE_SIZE))
    return model.eval()


@pytest.fixture
def model() -> cpc.CPC:
    return tiny_model()


@pytest.fixture
def model_folder(model: cpc.CPC, tmp_path: Path) -> Path:
    bound = BOUND | {"steps": [2, 2], "directions": ["down", "left"]}
    provenance = {"step": 7, "data": OF_THE_RUN, "held_out": [bound]}
    cpc.save_pretrained(model, tmp_path / "run" / "model", provenance=provenance)
    return tmp_path / "run"


def gratings(labels: np.ndarray, seed: int = 0) -> np.ndarray:
    """`[n, S, S, 3]` uint8: brightness waves from column to column (class 0) or row to row, 7 pixels long, at a phase
    of their own.
    """
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:SIDE, :SIDE]
    along = np.where((labels == 0)[:, None, None], columns, rows)
    waves = np.sin(2 * np.pi * along / 7 + rng.uniform(0, 2 * np.pi, (len(labels), 1, 1)))[..., None]
    images = 128 + 80 * waves + rng.normal(0, 10, (len(labels), SIDE, SIDE, 3))
    return images.clip(0, 255).astype(np.uint8)


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 training, 8 valid, 14 test images in turns of both classes, and 4 without a label. Read it only."""
    labels = np.arange(len(SPLITS)) % 2
    path = tmp_path_factory.mktemp("gratings") / "gratings.npz"
    known = np.where(np.array(SPLITS) == "unlabelled", -1, labels)
    np.savez(path, images=gratings(labels), labels=known, split=SPLITS, classes=CLASSES)
    return path


@pytest.fixture(scope="session")
def pixels_of(source: Path) -> Callable[[str], np.ndarray]:
    """`[n, 3, 24, 24]` in [0, 1]: the middle of the images of a split, cut with numpy alone."""

    def cut(split: str) -> np.ndarray:
        with np.load(source) as arrays:
            chosen = arrays["images"][arrays["split"] == split]
        return chosen[:, 2:26, 2:26].transpose(0, 3, 1, 2) / np.float32(255)

    return cut


@pytest.fixture
def corpus(source: Path, model: cpc.CPC) -> ImageCorpus:
    return Images(source=str(source), image_size=IMAGE_SIZE, load_size=SIDE, flip=True).open(model.encoder)


@pytest.fixture
def labelled_corpus(tmp_path: Path, model: cpc.CPC) -> Callable[..., ImageCorpus]:
    """A corpus with these labels by split, in one npz file; pixels are black, but for the label in their first."""

    def write(classes: list[str] | None = None, sequence: np.ndarray | None = None, **labels: list[int]) -> ImageCorpus:
        columns: dict[str, Any] = {"labels": np.concatenate([*labels.values()])}
        images = np.zeros((len(columns["labels"]), IMAGE_SIZE, IMAGE_SIZE), np.uint8)
        images[:, 0, 0] = 10 * (1 + columns["labels"])
        columns["split"] = [split for split, split_items in labels.items() for _ in split_items]
        if classes is not None:
            columns["classes"] = classes
        if sequence is not None:
            columns["sequence"] = sequence
        path = tmp_path / f"labels{len(list(tmp_path.iterdir()))}.npz"
        np.savez(path, images=images, **columns)
        options = {"image_size": IMAGE_SIZE, "augmentation": "none", "valid_share": 0.0}
        return Images(source=str(path), **options).open(model.encoder)

    return write
