"""The encoder of frames: shapes, no leak between frames or windows, its data initialisation."""

import pytest
import torch
from refusals import refuses

from cpc.encoders import FrameEncoder


@pytest.fixture
def encoder() -> FrameEncoder:
    return FrameEncoder((20, 16), 6, num_frames=2, widths=(5, 7), kernels=(4, 3), strides=(2, 1))


def test_a_latent_sees_its_own_stack_alone(encoder: FrameEncoder) -> None:
    x = torch.randint(0, 256, (3, 4, 2, 20, 16), dtype=torch.uint8)
    latents = encoder(x)
    assert latents.shape == (3, 4, 6)
    changed = x.clone()
    changed[1, 2] = 255 - changed[1, 2]
    differs = (encoder(changed) - latents).abs().amax(2) > 1e-6
    assert differs.nonzero().tolist() == [[1, 2]]
    torch.testing.assert_close(encoder(x.flip(0)), latents.flip(0))


def test_layers_are_torchs_convolutions(encoder: FrameEncoder) -> None:
    """Each channel is standardised before its ReLU, as initialised."""
    encoder.double().set_statistics(0.25, 0.5)
    x = torch.randint(0, 256, (4, 8, 2, 20, 16), dtype=torch.uint8)
    encoder.initialise_from(x)
    hidden = (x.flatten(0, 1).double() / 255 - 0.25) / 0.5
    for layer, stride in zip(encoder.layers, (2, 1), strict=True):
        scaled = layer.scale.reshape(-1, 1, 1, 1) * layer.weight
        hidden = torch.nn.functional.conv2d(hidden, scaled, layer.bias, stride)
        std, mean = torch.std_mean(hidden, (0, 2, 3))
        torch.testing.assert_close(mean, torch.zeros_like(mean), atol=1e-4, rtol=0)
        torch.testing.assert_close(std, torch.ones_like(std), atol=1e-3, rtol=0)
        hidden = hidden.relu()
    flat = hidden.permute(0, 2, 3, 1).flatten(1)
    torch.testing.assert_close(encoder(x).flatten(0, 1), encoder.projection(flat))


def test_bad_arguments(encoder: FrameEncoder) -> None:
    refuses(r"need one entry per layer", FrameEncoder, widths=(4,))
    refuses("the size after the last layer", FrameEncoder, (7, 30))
    refuses(r"frames is .* of the shape \[B, T, 2, 20, 16\]", encoder, torch.zeros(1, 1, 1, 20, 16))
    refuses("cannot standardise observations: are they constant", encoder.set_statistics, 0.5, 0.0)
