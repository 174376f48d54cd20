"""Whole files in, features out: chunks, order and earlier files must not matter (traps T4, T22, T30)."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from refusals import refuses

import cpc
from cpc.contexts import GRU, LSTM, CausalTransformer, Context
from cpc.data.features import Features
from cpc.encoders import MFCC, AudioEncoder, MelEncoder, SignalEncoder
from cpc.predictors import Bilinear

CONTEXTS = [GRU(dim=8, num_layers=2), LSTM(dim=8), CausalTransformer(dim=8, num_heads=2, window=7)]


def noise(num_samples: int, seed: int = 0) -> np.ndarray:
    return 0.1 * np.random.default_rng(seed).standard_normal(num_samples, dtype=np.float32)


@pytest.mark.parametrize("context", CONTEXTS, ids=lambda context: type(context).__name__)
@pytest.mark.parametrize("chunk_seconds", [0.011, 0.05, 0.3])
def test_a_model_in_chunks_equals_the_model_on_the_whole_file(context: Context, chunk_seconds: float) -> None:
    model = cpc.CPC(AudioEncoder(dim=8), context, Bilinear(2))
    model.encoder.set_statistics(0.02, 0.1)  # so that zeros of the padding are no zeros of the signal
    wave = noise(16_777)
    model.initialise_from(torch.from_numpy(wave)[None])
    with torch.no_grad():
        latents, contexts, *_ = model.eval()(torch.from_numpy(wave)[None])
    for kind, whole in (("z", latents), ("c", contexts), ("zc", torch.cat([latents, contexts], 2))):
        features = Features(kind, model, chunk_seconds=chunk_seconds)
        in_chunks = features(wave)
        assert in_chunks.shape == (features.num_frames(np.array([len(wave)]))[0], features.dim)
        np.testing.assert_allclose(in_chunks, whole[0].numpy(), atol=2e-5)


@pytest.mark.parametrize("front", ["raw", "level"])
def test_signals_in_chunks_have_the_averages_of_the_whole_recording(front: str) -> None:
    encoder = SignalEncoder(2, 8, 50.0, front=front, baseline_seconds=6.0)
    model = cpc.CPC(encoder, GRU(8), Bilinear(2))
    wave = np.stack([noise(1700), noise(1700, seed=1)], 1) + np.linspace(0, 1, 1700, dtype=np.float32)[:, None]
    with torch.no_grad():
        latents, contexts, *_ = model.eval()(torch.from_numpy(wave)[None])
    in_chunks = Features("zc", model, chunk_seconds=1.0)(wave)
    np.testing.assert_allclose(in_chunks, torch.cat([latents, contexts], 2)[0].numpy(), atol=2e-5)


@pytest.mark.parametrize("context", CONTEXTS, ids=lambda context: type(context).__name__)
def test_files_together_are_as_files_alone(context: Context) -> None:
    features = Features("zc", cpc.CPC(AudioEncoder(dim=8), context, Bilinear(2)), chunk_seconds=0.05)
    waves = [noise(length, seed=length) for length in (4_000, 9_001, 0, 160, 20)]
    for wave, frames in zip(waves, features.together([[wave] for wave in waves]), strict=True):
        np.testing.assert_allclose(frames, features(wave), atol=2e-6)


@pytest.mark.parametrize("kind", ["c", "z", "zc"])
def test_windows_together_are_as_windows_alone(kind: str) -> None:
    for encoder, channels in ((AudioEncoder(dim=8), ()), (SignalEncoder(3, 8), (3,))):
        features = Features(kind, cpc.CPC(encoder, GRU(8), Bilinear(2)))
        windows = 0.1 * np.random.default_rng(0).standard_normal((5, 900, *channels), dtype=np.float32)
        found = features.encode_windows(windows)
        assert found.shape == (5, features.num_frames(np.array([900]))[0], features.dim)
        np.testing.assert_allclose(found, np.stack([features(window) for window in windows]), atol=2e-6)


@settings(max_examples=100, deadline=None)
@example(layers=[(1, 4, 0), (2, 2, 0)], num_samples=300, chunk=40)  # a field shorter than the hop
@example(layers=[(2, 1, 4)], num_samples=30, chunk=5)  # more padding than kernel
@example(layers=[(5, 1, 0), (1, 1, 3)], num_samples=30, chunk=1)  # the last latents need none of the last samples
@given(
    layers=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 5), st.integers(0, 6)), min_size=1, max_size=3),
    num_samples=st.integers(0, 400),
    chunk=st.integers(1, 90),
)
def test_any_geometry_in_chunks_is_the_file(layers: list[tuple[int, int, int]], num_samples: int, chunk: int) -> None:
    torch.manual_seed(0)
    kernels, strides, paddings = zip(*layers, strict=True)
    encoder = AudioEncoder(3, 100, "none", kernels, strides, paddings)
    for layer in encoder.layers:
        torch.nn.init.normal_(layer.bias)  # so that zeros between layers differ from silence
    chunks_equal_the_whole(encoder, num_samples, chunk)


@settings(max_examples=60, deadline=None)
@given(
    hop=st.integers(4, 12),
    longer=st.integers(0, 12),
    num_frames=st.sampled_from([None, 1, 3, 7]),
    num_samples=st.integers(0, 300),
    chunk=st.integers(1, 90),
)
def test_spectra_of_any_geometry_in_chunks_equal_the_whole_file(
    hop: int, longer: int, num_frames: int | None, num_samples: int, chunk: int
) -> None:
    torch.manual_seed(0)
    window = hop + 2 * longer
    frames = {"num_mels": 1, "sample_rate_hz": 100, "hop_samples": hop, "window_samples": window}
    encoder = MFCC(1, 2, **frames) if num_frames is None else MelEncoder(3, 4, num_frames, **frames)
    chunks_equal_the_whole(encoder, num_samples, chunk)


def chunks_equal_the_whole(encoder: AudioEncoder | MelEncoder | MFCC, num_samples: int, chunk: int) -> None:
    encoder.set_statistics(0.02, 0.1)
    features = Features("z", cpc.CPC(encoder, GRU(dim=2), Bilinear(1)), chunk_seconds=chunk / 100)
    wave = noise(num_samples)
    (num_frames,) = features.num_frames(np.array([num_samples]))
    found = features(wave)
    assert found.shape == (num_frames, 3)
    if num_frames:
        with torch.no_grad():
            np.testing.assert_allclose(found, encoder(torch.from_numpy(wave)[None])[0].numpy(), atol=1e-4)


def test_blocks_of_any_size_make_the_same_features(model: cpc.CPC) -> None:
    wave = noise(5_000)
    features = Features("c", model)
    blocks = np.split(wave, [1, 2, 160, 161, 3_000, 3_000])
    np.testing.assert_allclose(np.concatenate(list(features.stream(blocks))), features(wave), atol=1e-5)


def test_a_model_in_training_is_read_in_eval_mode_and_left_in_training() -> None:
    model = cpc.CPC(AudioEncoder(dim=8), GRU(dim=8, num_layers=2, dropout=0.5), Bilinear(2)).train()
    features = Features("c", model)
    wave = noise(4_000)
    with_dropout_off = features(wave)
    np.testing.assert_array_equal(features(wave), with_dropout_off)
    assert all(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_spectra_take_the_rate_and_the_statistics_of_the_corpus(model: cpc.CPC) -> None:
    assert Features("mfcc", model).sample_rate_hz == 16000
    wave = noise(4_000)
    plain = Features("logmel", sample_rate_hz=16000)(wave)
    scaled = Features("logmel", sample_rate_hz=16000, statistics=(0.0, 0.1))(wave)
    np.testing.assert_allclose(scaled - plain, 2 * np.log(10), atol=0.05)


@pytest.mark.usefixtures("unchecked_types")
def test_mistakes_are_named() -> None:
    for features, message in (("q", "not one of"), ("c", "a model$"), ("mfcc", "model or sample_rate_hz")):
        refuses(message, Features, features)
