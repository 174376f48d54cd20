"""Features of image files, one grid per file, for whoever wants them elsewhere.

H rows and W columns of patches, D feature dim.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float

from cpc.checkpoint import load_pretrained, read_config
from cpc.data.images.corpus import ImageDataset
from cpc.data.images.files import ImageFiles
from cpc.data.images.folder import FolderImages, find_images
from cpc.data.images.patch_augmentation import PatchAugmentation
from cpc.data.images.table import ImageTable
from cpc.evaluation import recorded_data
from cpc.probes.embed import Format, plan_outputs, write_features
from cpc.probes.features import Precision


def embed_images(
    model_folder: str | Path,
    paths: Sequence[str | Path],
    out: str | Path,
    features: Literal["c", "z"] = "c",
    format: Format = "npy",
    *,
    skip_bad: bool = False,
    overwrite: bool = False,
    device: str = "cpu",
    precision: Precision = "float32",
    progress: bool = True,
) -> list[Path]:
    """Writes `[H, W, D]` float32 features of each image file, with a JSON beside it that tells where patches lie.

    An image is brought to the size that the model's run gave it, and cut in the middle: its shorter side becomes
    `load_size` pixels, of which the central `image_size` are taken. Row i and column j stand for the `patch_size`
    pixels from `i * stride` and `j * stride` of that square. Outputs are named as `cpc.probes.embed.embed` does.

    Args:
        model_folder: as `cpc.load_pretrained` takes it.
        paths: image files, and folders to search.
        out: folder to write to.
        features: contexts `c` or latents `z`.
        format: `npy` or `safetensors`.
        skip_bad: leave out files that cannot be decoded, and warn how many.
        overwrite: replace outputs that are there already.
        device: where to compute.
        precision: of the model's products.
        progress: show a progress bar.

    Returns:
        The files written.

    Raises:
        ValueError: before anything is written: on a model that does not say how its images were cut, a missing path, a
            folder without images, two inputs with one output, or outputs that exist already. While writing: on a bad
            file, unless `skip_bad`.
    """
    targets = plan_outputs(paths, out, features, format, find_images, overwrite=overwrite)
    config = read_config(model_folder)
    protocol: Any = recorded_data(config, "")
    load_size = protocol.load_size or protocol.image_size
    model = load_pretrained(model_folder, device=device)
    encoder = model.encoder
    patches = PatchAugmentation(protocol.augmentation, encoder.grid, encoder.pixel_mean.cpu())

    @torch.inference_mode()
    def read(path: Path) -> Float[np.ndarray, "H W D"]:
        table = ImageTable([path.name], ["unlabelled"], np.array([-1]), [], FolderImages(path.parent))
        images = ImageDataset(
            ImageFiles(table, load_size, encoder.num_channels),
            np.array([0]),
            protocol.image_size,
            None if encoder.fully_convolutional else patches,
            chance="none",
            flip=False,
        )
        x = images.__getitems__([(0, 0)]).x.to(device)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            latents, contexts, _ = model.encode(x)
        grid = contexts if features == "c" else latents
        return rearrange(grid.float(), "1 h w d -> h w d").cpu().numpy()

    sidecar = {
        "features": features,
        "dim": model.context.dim if features == "c" else encoder.dim,
        **encoder.geometry,
        "image_size": protocol.image_size,
        "load_size": load_size,
        "model_sha256": config["sha256"],
    }
    return write_features(targets, read, sidecar, format, skip_bad=skip_bad, progress=progress)
