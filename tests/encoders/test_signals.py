"""The encoder of signals against a slow convolution in float64, and the properties that padding and gaps must have."""

import math

import numpy as np
import pytest
import torch
from refusals import refuses

from cpc.encoders import SignalEncoder

GEOMETRIES = [
    {"kernels": (8, 4), "strides": (4, 2)},
    {"kernels": (8, 4), "strides": (4, 2), "causal": False},
    {"kernels": (5, 3, 2), "strides": (2, 3, 1)},
    {"kernels": (3,), "strides": (3,), "causal": False},
]


def encoder(**options: object) -> SignalEncoder:
    torch.manual_seed(0)
    made = SignalEncoder(3, 6, 20.0, **{"norm": "none", **options}).double()
    made.set_statistics([1.0, -2.0, 0.5], [2.0, 0.5, 1.0], [0.1, 0.2, 0.05])
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return made


def oracle(made: SignalEncoder, x: np.ndarray) -> np.ndarray:
    """Latents of one recording `[S, I]` without gaps, by loops over samples."""
    x = (x - made.input_mean.numpy()) / made.input_std.numpy()
    floor, width = made.input_floor.numpy(), made.average_samples
    centred = np.array([x[t] - x[max(0, t - width + 1) : t + 1].mean(0) for t in range(len(x))])
    baseline = [x[t] - x[max(0, t - made.baseline_samples + 1) : t + 1].mean(0) for t in range(len(x))]
    if made.front == "compand":
        x = np.concatenate([x, np.arcsinh(centred / floor)], 1)
    if made.front == "level":
        level = [np.sqrt((centred[max(0, t - width + 1) : t + 1] ** 2).mean(0)) for t in range(len(x))]
        x = np.concatenate([x, np.log1p(np.array(level) / floor)], 1)
    if made.baseline_seconds is not None:
        x = np.concatenate([x, baseline], 1)
    for layer, kernel, stride in zip(made.layers, made.kernels, made.strides, strict=True):
        weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
        first = kernel - stride if made.causal else (kernel - stride) // 2
        outputs = []
        for t in range(-(-len(x) // stride)):
            total = bias.copy()
            for tap in range(kernel):
                if 0 <= (sample := t * stride - first + tap) < len(x):
                    total += weight[:, :, tap] @ x[sample]
            outputs.append(np.maximum(total, 0))
        x = np.array(outputs)
    return x


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize(
    ("front", "baseline_seconds"), [("raw", None), ("raw", 1.2), ("level", None), ("compand", 1.2)]
)
def test_latents_equal_those_of_loops(geometry: dict, front: str, baseline_seconds: float | None) -> None:
    made = encoder(front=front, level_seconds=0.4, baseline_seconds=baseline_seconds, **geometry)
    for num_samples in (1, 7, 8, 50):
        x = torch.randn(1, num_samples, 3, dtype=torch.float64) + 1
        latents = made(x)[0].detach().numpy()
        assert len(latents) == made.num_latents(num_samples) == max(1, num_samples // made.hop_samples)
        assert made.num_latents(torch.tensor([0, num_samples])).tolist() == [0, len(latents)]
        np.testing.assert_allclose(latents, oracle(made, x[0].numpy())[: len(latents)], atol=1e-10)


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("front", ["raw", "level", "compand"])
def test_the_width_of_padding_changes_no_latent(geometry: dict, front: str) -> None:
    made = encoder(front=front, norm="affine", baseline_seconds=0.7, **geometry)
    x = torch.randn(1, 43, 3, dtype=torch.float64)
    alone = made(x)
    for num_padded in (1, 4, 30):
        padded = made(torch.cat([x, torch.full((1, num_padded, 3), math.nan, dtype=torch.float64)], 1))
        torch.testing.assert_close(padded[:, : alone.shape[1]], alone)


def test_missing_samples_are_zero_after_standardisation() -> None:
    made = encoder(front="raw")
    x = torch.randn(1, 40, 3, dtype=torch.float64)
    mean = x.clone()
    x[:, 10:13, 1] = math.nan
    mean[:, 10:13, 1] = made.input_mean[1]
    torch.testing.assert_close(made(x), made(mean))
    assert torch.isfinite(encoder(front="level", baseline_seconds=1.0)(x)).all()
    assert torch.isfinite(encoder(front="compand")(torch.full_like(x, math.nan))).all()


@pytest.mark.parametrize("front", ["raw", "level", "compand"])
@pytest.mark.parametrize("baseline_seconds", [None, 0.2, 0.9])
def test_a_causal_latent_ends_with_its_hop_and_reads_past_samples(front: str, baseline_seconds: float | None) -> None:
    options = {"level_seconds": 0.3, "baseline_seconds": baseline_seconds}
    made = encoder(front=front, kernels=(8, 4), strides=(4, 2), **options)
    x = torch.randn(1, 80, 3, dtype=torch.float64, requires_grad=True)
    latents = made(x)
    for t in (4, 7):
        (gradient,) = torch.autograd.grad(latents[0, t].sum(), x, retain_graph=True)
        read = (gradient[0].abs().sum(1) > 1e-12).nonzero()[:, 0]
        assert read.max() < (t + 1) * made.hop_samples
        assert read.min() >= t * made.hop_samples - made.past_samples
    centred = encoder(front="raw", kernels=(8, 4), strides=(4, 2), causal=False)
    (gradient,) = torch.autograd.grad(centred(x)[0, 4].sum(), x)
    read = (gradient[0].abs().sum(1) > 1e-12).nonzero()[:, 0].double()
    assert (read.min() + read.max()) / 2 == 4 * 8 + centred.first_centre_samples


@pytest.mark.parametrize(("kernels", "overlapping"), [((4, 2), 0), ((8, 2), 1), ((8, 4), 2), ((8, 8), 4)])
def test_overlapping_steps_are_the_latents_that_share_samples(kernels: tuple[int, ...], overlapping: int) -> None:
    made = encoder(front="raw", kernels=kernels, strides=(4, 2))
    x = torch.randn(1, 200, 3, dtype=torch.float64, requires_grad=True)
    latents = made(x)
    gradients = [torch.autograd.grad(latents[0, t].sum(), x, retain_graph=True)[0] for t in range(25)]
    reads = [gradient.abs().sum((0, 2)) > 1e-12 for gradient in gradients]
    shared = [k for k in range(1, 8) if (reads[10] & reads[10 + k]).any()]
    assert made.overlapping_steps == overlapping == len(shared)


def test_initialisation_standardises_every_layer() -> None:
    made = SignalEncoder(2, 5, 10.0)
    x = torch.randn(8, 200, 2) * torch.tensor([3.0, 0.01]) + 5
    made.set_statistics(x.mean((0, 1)), x.std((0, 1)), 0.5 * x.std((0, 1)))
    made.initialise_from(x)
    hidden, is_known = made._front(x)
    for layer in made.layers:
        outputs = layer(hidden)
        np.testing.assert_allclose(outputs.detach().mean((0, 1)), 0, atol=1e-4)
        np.testing.assert_allclose(outputs.detach().std((0, 1)), 1, atol=1e-3)
        hidden, is_known = layer.rectified(outputs, is_known)


def test_refusals() -> None:
    refuses("are shorter than strides", SignalEncoder, 3, kernels=(2,), strides=(4,))
    refuses("need one entry per layer", SignalEncoder, 3, kernels=(4, 4), strides=(4,))
    refuses("need one entry per layer", SignalEncoder, 3, kernels=(), strides=())


def test_refused_signals_and_statistics() -> None:
    made = SignalEncoder(3)
    for shape in ((2, 10, 2), (1, 0, 3)):
        refuses(r"of the shape \[batch, samples, 3\]|have no sample", made, torch.zeros(shape))
    refuses("must be finite", made.set_statistics, [0.0, 0.0, math.nan], 1.0)
    made.set_statistics([1.0, 2.0, 3.0], [1.0, 0.0, 2.0], [0.0, 0.1, 0.5])  # a constant channel keeps deviation 1
    assert made.input_std.tolist() == [1, 1, 2]
    assert made.input_floor.tolist() == pytest.approx([1, 0.1, 0.25])
