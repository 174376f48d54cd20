from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from refusals import refuses
from torch import Tensor, nn

from cpc.encoders import AudioEncoder, ResNetTrunk, TinyTrunk
from cpc.encoders.convolution import Norm

NORMS = ("affine", "layer", "none")


def encoder(norm: Norm = "affine", **options: object) -> AudioEncoder:
    torch.manual_seed(0)
    return AudioEncoder(dim=8, norm=norm, **options)


def test_the_papers_window_gives_128_latents_every_ten_milliseconds() -> None:
    model = encoder()
    assert model(torch.randn(2, 20480)).shape == (2, 128, 8)
    assert model.hop_samples == 160
    assert model.receptive_field_samples == 465
    assert model.first_centre_samples == 79.0


@settings(max_examples=200, deadline=None)
@example(layers=[(5, 1, 1), (1, 3, 2)], num_samples=2)
@given(
    layers=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 5), st.integers(0, 6)), min_size=1, max_size=4),
    num_samples=st.integers(0, 150),
)
def test_any_geometry_gives_latents_of_plain_convolutions(layers: list[tuple[int, int, int]], num_samples: int) -> None:
    """torch's convolutions refuse what cannot be made, in whichever layer it is: such waveforms have no latents."""
    torch.manual_seed(0)
    kernels, strides, paddings = zip(*layers, strict=True)
    model = AudioEncoder(3, norm="none", kernels=kernels, strides=strides, paddings=paddings)
    x = torch.randn(1, num_samples, requires_grad=True)
    expected = plain_convolutions(model, x)
    assert model.num_latents(num_samples) == expected.shape[1]
    assert model.num_latents(torch.tensor([num_samples])).tolist() == [expected.shape[1]]
    assert model.num_latents(model.shortest_samples) > 0 == model.num_latents(model.shortest_samples - 1)
    if expected.shape[1]:
        found, inputs = model(x), (x, *model.parameters())
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
        gradients = (torch.autograd.grad(latents.square().sum(), inputs) for latents in (found, expected))
        torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-3)
    else:
        refuses("too few", model, x)


def plain_convolutions(model: AudioEncoder, x: Tensor) -> Tensor:
    hidden = x[:, None]
    for layer, kernel, stride, padding in zip(model.layers, model.kernels, model.strides, model.paddings, strict=True):
        if hidden.shape[2] < max(kernel - 2 * padding, 1):
            return torch.zeros(1, 0, model.dim)
        hidden = F.conv1d(hidden, layer.weight, layer.bias, stride, padding).relu()
    return hidden.transpose(1, 2)


def test_receptive_field_and_centre_by_perturbation() -> None:
    touched = torch.zeros(4800)
    for seed in range(5):  # ReLU hides samples now and then
        torch.manual_seed(seed)
        x = torch.randn(1, 4800, requires_grad=True)
        (gradient,) = torch.autograd.grad(AudioEncoder(dim=8, norm="none")(x)[0, 10].sum(), x)
        touched += gradient[0].abs()
    model = encoder()
    first, last = touched.nonzero()[0].item(), touched.nonzero()[-1].item()
    assert last - first + 1 == model.receptive_field_samples
    assert (first + last) / 2 == model.first_centre_samples + 10 * model.hop_samples


@pytest.mark.parametrize("norm", NORMS)
def test_equals_the_plain_network_of_modules(norm: Norm) -> None:
    """The oracle: nn.Conv1d, norm and ReLU as modules, with the same weights."""
    model = encoder(norm)
    x = 0.01 * torch.randn(8, 3200) + 0.5
    model.set_statistics(0.5, 0.01)
    model.initialise_from(x)
    hidden = (x[:, None] - 0.5) / 0.01
    for layer, kernel, stride, padding in zip(model.layers, model.kernels, model.strides, model.paddings, strict=True):
        conv = nn.Conv1d(hidden.shape[1], 8, kernel, stride, padding)
        conv.weight.data, conv.bias.data = layer.weight.data, layer.bias.data
        if norm == "affine":
            conv.bias.data = torch.zeros(8)
            hidden = conv(hidden) * layer.scale[:, None] + layer.bias[:, None]
            torch.testing.assert_close(hidden.mean((0, 2)), torch.zeros(8), atol=1e-4, rtol=0)  # as initialised
            torch.testing.assert_close(hidden.std((0, 2)), torch.ones(8), atol=1e-3, rtol=0)
        else:
            hidden = conv(hidden)
        if norm == "layer":
            mean, variance = hidden.mean(1, keepdim=True), hidden.var(1, keepdim=True, unbiased=False)
            hidden = (hidden - mean) / (variance + 1e-5).sqrt()
        hidden = F.relu(hidden)
    torch.testing.assert_close(model(x), hidden.transpose(1, 2), atol=1e-5, rtol=1e-4)


def test_bad_input_is_named() -> None:
    refuses("need one entry per layer", AudioEncoder, 8, kernels=(10, 8, 4, 4))
    refuses("20 samples are too few for one latent", encoder(), torch.randn(1, 20))
    refuses("cannot standardise observations: are they constant", encoder().set_statistics, 0.0, 0.0)


@pytest.mark.parametrize(
    ("build", "shape", "latents"),
    [
        (lambda: AudioEncoder(8), (1600,), (10, 8)),
        (lambda: TinyTrunk(8, strides=(4, 1, 2, 1), widths=(4, 4, 6, 6)), (3, 16, 16), (8, 2, 2)),
        (lambda: ResNetTrunk(18, stem="small", width=4), (3, 16, 16), (16, 4, 4)),
    ],
)
def test_no_observations_and_those_that_standardise_nothing(
    build: Callable[[], nn.Module], shape: tuple[int, ...], latents: tuple[int, ...]
) -> None:
    model, x = build(), torch.zeros(0, *shape, requires_grad=True)
    found = model(x)
    assert found.shape == (0, *latents)
    found.sum().backward()
    assert x.grad.shape == x.shape
    refuses("not constant", model.initialise_from, torch.zeros(2, *shape))
    refuses("finite", model.initialise_from, torch.full((2, *shape), torch.nan))
