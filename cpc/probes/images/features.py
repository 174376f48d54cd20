"""One vector per image: means or grids of a model's latents and contexts, pixels, histograms of gradients.

B images of a batch, n images, H rows and W columns of patches, D feature dim.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from einops import rearrange, reduce
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from cpc.data.images.corpus import ImageDataset
from cpc.model import CPC
from cpc.probes.features import Precision

Readout = Literal["z", "z_grid", "c", "c_grid"]
READOUTS: tuple[str, ...] = get_args(Readout)

_BATCH_IMAGES = 128  # that a model sees at a time
_BLOCK_IMAGES = 1024
_HOG: dict[str, Any] = {"orientations": 9, "pixels_per_cell": (8, 8), "cells_per_block": (2, 2)}


@torch.no_grad()
def learnt_features(
    model: CPC,
    images: ImageDataset,
    readouts: Sequence[str],
    *,
    device: str = "cpu",
    precision: Precision = "float32",
    progress: bool = True,
) -> dict[str, np.ndarray]:
    """What a model says about images, unchanged by chance.

    `z` and `c` are means of latents and contexts over the grid, as van den Oord et al. 2018 read z; `z_grid` and
    `c_grid` hold all of them side by side, in float16.

    Args:
        model: in eval mode.
        images: of a corpus, not in training.
        readouts: of `READOUTS`.
        device: where the model is.
        precision: of the model's products.
        progress: show a progress bar.

    Returns:
        `[n, D]` by readout.
    """
    found: dict[str, np.ndarray] = {}
    order = range(0, len(images.images), _BATCH_IMAGES)
    for start in tqdm(order, desc="features", unit="batch", disable=not progress):
        rows = range(start, min(start + _BATCH_IMAGES, len(images.images)))
        x = images.__getitems__([(row, 0) for row in rows]).x.to(device)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            latents, contexts, _ = model.encode(x)
        for readout in readouts:
            values = _read(readout, latents, contexts)
            if readout not in found:
                found[readout] = np.empty((len(images.images), values.shape[1]), values.dtype)
            found[readout][rows.start : rows.stop] = values
    return found


def _read(readout: str, latents: Float[Tensor, "B H W D"], contexts: Float[Tensor, "B H W C"]) -> np.ndarray:
    grid = (latents if readout.startswith("z") else contexts).float()
    if readout.endswith("grid"):
        return rearrange(grid, "b h w d -> b (h w d)").half().cpu().numpy()
    return reduce(grid, "b h w d -> b d", "mean").cpu().numpy()


def pixels(images: ImageDataset, *, progress: bool = False) -> Float[np.ndarray, "n D"]:
    """The pixels themselves, in [0, 1]."""
    found = np.empty((len(images.images), images.pixels(np.array([0])).numel()), np.float32)
    for rows, block in _blocks(images, "pixels", progress):
        found[rows] = rearrange(block, "b c s r -> b (c s r)").numpy()
    return found


def check_hog(image_size: int) -> None:
    """Ask for what histograms of gradients need.

    Raises:
        ValueError: if scikit-image is not installed, or images are smaller than a block of cells.
    """
    _skimage_hog()
    smallest = _HOG["pixels_per_cell"][0] * _HOG["cells_per_block"][0]
    if image_size < smallest:
        raise ValueError(
            f"features 'hog' need images of at least {smallest} pixels, these have {image_size}: leave hog out"
        )


def hog(images: ImageDataset, *, progress: bool = False) -> Float[np.ndarray, "n D"]:
    """Histograms of oriented gradients (Dalal and Triggs 2005), in cells of 8 x 8 pixels, by scikit-image.

    Raises:
        ValueError: if scikit-image is not installed.
    """
    describe = _skimage_hog()
    found = np.empty((len(images.images), hog_dim(images.image_size)), np.float32)
    for rows, block in _blocks(images, "hog", progress):
        for row, image in zip(rows, rearrange(block, "b c s r -> b s r c").numpy(), strict=True):
            found[row] = describe(image, channel_axis=-1, **_HOG)
    return found


def hog_dim(image_size: int) -> int:
    """How many numbers `hog` gives: blocks of cells, every cell apart, times cells of a block times orientations."""
    cells, of_block = image_size // _HOG["pixels_per_cell"][0], _HOG["cells_per_block"][0]
    return (cells - of_block + 1) ** 2 * of_block**2 * _HOG["orientations"]


def _skimage_hog() -> Any:
    try:
        from skimage.feature import hog as describe
    except ImportError as error:
        raise ValueError(
            "features 'hog' need scikit-image: install it with `uv sync --extra image` or `pip install 'cpc[image]'`"
        ) from error
    return describe


def _blocks(images: ImageDataset, title: str, progress: bool) -> Iterator[tuple[np.ndarray, Float[Tensor, "B C S S"]]]:
    """Rows, and the pixels of their images."""
    num = len(images.images)
    for start in tqdm(range(0, num, _BLOCK_IMAGES), desc=title, unit="block", disable=not progress):
        rows = np.arange(start, min(start + _BLOCK_IMAGES, num))
        yield rows, images.pixels(rows)
