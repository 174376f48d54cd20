import math

import numpy as np
import pytest
import torch
from refusals import refuses

import cpc
from cpc.contexts import GRU
from cpc.encoders import MFCC, LogMel, MelEncoder
from cpc.predictors import Bilinear

Encoder = LogMel | MFCC
ENCODERS: dict[str, Encoder] = {
    "logmel": LogMel(),
    "logmel, 8 kHz": LogMel(23, sample_rate_hz=8000, hop_samples=80, window_samples=200),
    "mfcc": MFCC(),
    "mfcc, no deltas": MFCC(num_deltas=0),
}


@pytest.fixture(params=ENCODERS)
def encoder(request: pytest.FixtureRequest) -> Encoder:
    return ENCODERS[request.param]


def log_mel_by_definition(x: np.ndarray, num_mels: int, rate: int, hop: int, window: int) -> np.ndarray:
    """Float64: a Fourier sum per frame at the next power of two, triangular filters on HTK's mel scale."""
    fft = 1 << (window - 1).bit_length()
    taper = 0.54 - 0.46 * np.cos(2 * np.pi * np.arange(window) / (window - 1))
    frequencies = np.arange(fft // 2 + 1) * rate / fft
    fourier = np.exp(-2j * np.pi * np.outer(frequencies / rate, np.arange(window)))

    def hz(mel: float) -> float:
        return 700 * (10 ** (mel / 2595) - 1)

    top = 2595 * math.log10(1 + rate / 2 / 700)
    edges = [hz(top * i / (num_mels + 1)) for i in range(num_mels + 2)]
    frames = []
    for i in range(len(x) // hop):
        first = i * hop + hop // 2 - window // 2
        samples = np.array([x[n] if 0 <= n < len(x) else 0.0 for n in range(first, first + window)])
        power = np.abs(fourier @ (taper * samples)) ** 2
        bands = []
        for low, centre, high in zip(edges, edges[1:], edges[2:], strict=False):
            rise, fall = (frequencies - low) / (centre - low), (high - frequencies) / (high - centre)
            bands.append(np.clip(np.minimum(rise, fall), 0, None) @ power)
        frames.append(np.log(np.array(bands) + 1e-6))
    return np.array(frames)


def cepstrum_by_definition(log_mel: np.ndarray, num_coefficients: int) -> np.ndarray:
    num_mels = log_mel.shape[1]
    rows = []
    for q in range(num_coefficients):
        scale = math.sqrt((1 if q == 0 else 2) / num_mels)
        rows.append([scale * math.cos(math.pi * q * (m + 0.5) / num_mels) for m in range(num_mels)])
    return log_mel @ np.array(rows).T


def slopes_by_definition(frames: np.ndarray) -> np.ndarray:
    """Least-squares slope of 5 frames around each, the edge frames repeated."""
    slopes = []
    for t in range(len(frames)):
        around = [frames[min(max(t + n, 0), len(frames) - 1)] for n in range(-2, 3)]
        slopes.append(np.polyfit(np.arange(-2, 3), np.array(around), 1)[0])
    return np.array(slopes)


def signal(num_samples: int, num_sequences: int = 1, seed: int = 0) -> torch.Tensor:
    noise = torch.randn(num_sequences, num_samples, generator=torch.Generator().manual_seed(seed))
    level = 0.1 + torch.linspace(0, 6, num_samples).sin().square()
    return 0.2 * level * (noise + 0.9 * noise.roll(1, 1))


@pytest.mark.parametrize(
    ("num_mels", "rate", "hop", "window"), [(40, 16000, 160, 400), (23, 8000, 80, 200), (20, 16000, 100, 512)]
)
def test_log_mel_by_definition(num_mels: int, rate: int, hop: int, window: int) -> None:
    x = signal(2345)
    expected = log_mel_by_definition(x[0].double().numpy(), num_mels, rate, hop, window)
    result = LogMel(num_mels, rate, hop, window)(x)[0].numpy()
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-3)
    assert np.ptp(expected) > 2, "a signal that tells right from wrong"


@pytest.mark.parametrize("num_samples", [200, 2345])
def test_mfcc_by_definition(num_samples: int) -> None:
    x = signal(num_samples)
    log_mel = log_mel_by_definition(x[0].double().numpy(), 40, 16000, 160, 400)
    cepstrum = cepstrum_by_definition(log_mel, 13)
    slopes = slopes_by_definition(cepstrum)
    expected = np.concatenate([cepstrum, slopes, slopes_by_definition(slopes)], 1)
    np.testing.assert_allclose(MFCC()(x)[0].numpy(), expected, rtol=0, atol=2e-3)
    np.testing.assert_allclose(MFCC(12, 0)(x)[0].numpy(), cepstrum[:, :12], rtol=0, atol=2e-3)
    np.testing.assert_allclose(MFCC(13, 1)(x)[0].numpy(), expected[:, :26], rtol=0, atol=2e-3)


@pytest.mark.parametrize("name", ["logmel", "mfcc"])
def test_number_of_latents_at_every_length(name: str) -> None:
    encoder, x = ENCODERS[name], signal(500)
    lengths = torch.arange(1, 501)
    announced = encoder.num_latents(lengths)
    assert announced.dtype == lengths.dtype
    for length in range(1, 501):
        num_latents = encoder.num_latents(length)
        assert num_latents == announced[length - 1]
        if num_latents < 1:
            refuses(f"^{length} samples are too few", encoder, x[:, :length])
        else:
            assert encoder(x[:, :length]).shape == (1, num_latents, encoder.dim)


def test_receptive_field_and_centre_by_autograd(encoder: Encoder) -> None:
    num_samples = 40 * encoder.hop_samples
    x = signal(num_samples).requires_grad_()
    latents = encoder(x)
    weights = torch.randn(encoder.dim)
    reach = (encoder.receptive_field_samples - 1) / 2
    for i in (15, 20):
        (gradient,) = torch.autograd.grad((latents[0, i] * weights).sum(), x, retain_graph=True)
        seen = gradient[0].nonzero()[:, 0]
        centre = encoder.first_centre_samples + i * encoder.hop_samples
        assert (int(seen.min()), int(seen.max())) == (centre - reach, centre + reach)


def test_sequences_do_not_see_each_other(encoder: Encoder) -> None:
    x = signal(3000, 4)
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(encoder(x[order]), encoder(x)[order])
    torch.testing.assert_close(encoder(x[:1]), encoder(x)[:1])


@pytest.mark.parametrize("build", [LogMel, MFCC])
def test_statistics_standardise_the_input(build: type[Encoder]) -> None:
    plain, standardising = build(), build()
    standardising.set_statistics(0.5, 0.01)
    x = signal(4000)
    torch.testing.assert_close(standardising(0.01 * x + 0.5), plain(x), rtol=0, atol=1e-3)
    again = build()
    again.load_state_dict(standardising.state_dict())
    assert torch.equal(again(x), standardising(x))
    for mean, std in ((0.0, 0.0), (math.nan, 1.0), (0.0, math.inf)):
        refuses("cannot standardise", plain.set_statistics, mean, std)


def test_silence_is_finite(encoder: Encoder) -> None:
    assert encoder(torch.zeros(1, 4000)).isfinite().all()
    assert encoder(torch.full((1, 4000), 0.3)).isfinite().all()


def test_autocast_and_data_initialisation_change_nothing(encoder: Encoder) -> None:
    x = signal(4000)
    with torch.autocast("cpu", torch.bfloat16):
        latents = encoder(x)
    assert torch.equal(latents, encoder(x))
    assert latents.dtype == torch.float32
    before = encoder(x)
    encoder.initialise_from(signal(4000, 3, seed=1))
    assert torch.equal(encoder(x), before)


def test_contexts_train_on_fixed_features() -> None:
    model = cpc.CPC(MFCC(), GRU(8), Bilinear(2))
    model.initialise_from(signal(4000, 3))
    model.loss(signal(4000, 3)).loss.backward()
    assert all(each.grad is not None and each.grad.any() for each in model.parameters())


def test_bad_arguments() -> None:
    refuses("window_samples=100 must exceed", LogMel, window_samples=100)
    refuses("even number", LogMel, window_samples=401)
    refuses("num_mels=128: bands are too narrow", LogMel, num_mels=128)
    refuses("num_coefficients`=41", MFCC, num_coefficients=41)


@pytest.mark.parametrize("num_frames", [1, 5])
def test_latents_are_two_layers_on_standardised_frames(num_frames: int) -> None:
    torch.manual_seed(0)
    encoder = MelEncoder(dim=5, hidden_dim=7, num_frames=num_frames, num_mels=20)
    encoder.set_statistics(0.01, 0.3)
    x = 0.3 * torch.randn(3, 4000) + 0.01
    encoder.initialise_from(x)
    spectra = LogMel(20)
    spectra.set_statistics(0.01, 0.3)
    mean, std = (statistic((0, 1)) for statistic in (spectra(x).double().mean, spectra(x).double().std))
    reach = num_frames // 2
    silence = torch.full((3, 160 * reach), 0.01)  # outside the waveform: zeros, once standardised
    frames = (spectra(torch.cat([silence, x, silence], 1)).double() - mean) / std
    latents = encoder(x).double()
    assert latents.shape == (3, encoder.num_latents(4000), 5)
    first, second = encoder.hidden.double(), encoder.projection.double()
    for t in range(latents.shape[1]):
        expected = second(first(frames[:, t : t + num_frames].flatten(1)).clamp(min=0))
        torch.testing.assert_close(latents[:, t], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("num_frames", "reach"), [(1, 0), (5, 2)])
def test_a_latent_sees_its_own_window_alone(num_frames: int, reach: int) -> None:
    encoder = MelEncoder(dim=4, hidden_dim=6, num_frames=num_frames, num_mels=20)
    x = torch.randn(1, 3200, requires_grad=True)
    encoder(x)[0, 10].sum().backward()
    (seen,) = x.grad[0].nonzero(as_tuple=True)
    first = 1600 - 120 - 160 * reach
    assert first <= seen.min() < first + 160
    assert first + encoder.receptive_field_samples - 160 <= seen.max() < first + encoder.receptive_field_samples


def test_units_are_dropped_while_training_alone() -> None:
    torch.manual_seed(0)
    encoder, x = MelEncoder(dim=4, hidden_dim=6, dropout=0.5), torch.randn(1, 3200)
    assert not torch.equal(encoder(x), encoder(x))
    assert torch.equal(encoder.eval()(x), encoder(x))
