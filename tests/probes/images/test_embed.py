"""Features of image files on disk: one grid each, with where its patches lie."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file

import cpc
from cpc.data import Images
from cpc.probes.embed import embed


def write_noise(path: Path, width: int = 28, height: int = 28) -> np.ndarray:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(len(path.name)).integers(0, 256, (height, width, 3), np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


@torch.no_grad()
@pytest.mark.parametrize("features", ["c", "z"])
def test_a_grid_is_of_the_images_middle(features: str, model: cpc.CPC, model_folder: Path, tmp_path: Path) -> None:
    """28 pixels are the size that the run kept, of which 24 are seen, in patches framed by the mean colour."""
    pixels = write_noise(tmp_path / "in" / "deep" / "wide.png", width=40)
    written = embed(model_folder, [tmp_path / "in"], tmp_path / "out", features, progress=False)
    assert written == [tmp_path / "out" / "deep" / "wide.npy"]
    x = torch.from_numpy(pixels[2:26, 8:32].transpose(2, 0, 1) / np.float32(255))[None]
    patches = model.encoder.grid.patches(x).clone()
    for edge in (patches[..., 15, :], patches[..., :, 15]):
        edge[:] = model.encoder.pixel_mean[:, None]
    latents, contexts, *_ = model(patches)
    found = np.load(written[0])
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, {"c": contexts, "z": latents}[features][0], atol=1e-5)
    config = json.loads((model_folder / "model" / "config.json").read_text())
    sizes = {"patch_size": 16, "stride": 8, "num_channels": 3, "image_size": 24, "load_size": 28}
    source = {"model_sha256": config["sha256"], "source": str(tmp_path / "in" / "deep" / "wide.png")}
    described = json.loads(written[0].with_suffix(".json").read_text())
    assert described == {"features": features, "dim": {"c": 10, "z": 12}[features]} | sizes | source


def test_whole_images_for_a_fully_convolutional_encoder(tmp_path: Path, model: cpc.CPC) -> None:
    model.encoder.fully_convolutional = True
    saved_settings = Images(source="unknown", image_size=24, augmentation="none").saved_settings
    cpc.save_pretrained(model, tmp_path / "model", provenance={"data": saved_settings})
    pixels = write_noise(tmp_path / "24.png", 24, 24)
    embed(tmp_path / "model", [tmp_path / "24.png"], tmp_path / "out", "z", "safetensors", progress=False)
    found = load_file(tmp_path / "out" / "24.safetensors")["features"]
    x = torch.from_numpy(pixels.transpose(2, 0, 1) / np.float32(255))[None]
    np.testing.assert_allclose(found, model.encoder(x)[0].detach(), atol=1e-5)
    assert json.loads((tmp_path / "out" / "24.json").read_text())["load_size"] == 24
