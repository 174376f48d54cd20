"""Whole files in, features out: order, chunks and earlier files must not matter."""

import numpy as np
import pytest
import torch

from cpc.contexts import GRU
from cpc.encoders import AudioEncoder
from cpc.model import CPC
from cpc.predictors import Bilinear
from cpc.probes.features import Features


@pytest.fixture
def model() -> CPC:
    model = CPC(AudioEncoder(dim=8), GRU(dim=6), Bilinear(num_steps=2))
    model.initialise_from(torch.randn(4, 3200))
    return model


def wave(num_samples: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(num_samples).astype(np.float32)


@pytest.mark.parametrize("kind", ["c", "z", "zc"])
@pytest.mark.parametrize("num_samples", [465, 4000, 16037])
def test_chunks_equal_the_whole_file(model: CPC, kind: str, num_samples: int) -> None:
    x = wave(num_samples, 0)
    with torch.inference_mode():
        out = model.eval()(torch.from_numpy(x)[None])
    whole = {"z": out.latents, "c": out.contexts, "zc": torch.cat([out.latents, out.contexts], 2)}[kind][0]
    for chunk_seconds in (0.1, 0.25, 100.0):
        found = Features(kind, model, chunk_seconds=chunk_seconds)(x)
        np.testing.assert_allclose(found, whole.numpy(), atol=1e-5)


def test_nothing_leaks_from_file_to_file_or_into_the_model(model: CPC) -> None:
    """facts T4 and T22: the order of files is irrelevant, and the model's mode and gradients are left alone."""
    features = Features("c", model.train())
    first = features(wave(8000, 1))
    features(wave(3000, 2))
    np.testing.assert_array_equal(features(wave(8000, 1)), first)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_too_short_a_file_has_no_frames(model: CPC) -> None:
    assert Features("c", model)(wave(20, 0)).shape == (0, 6)


@pytest.mark.parametrize(("kind", "message"), [("c", "c"), ("mfcc", "sample_rate_hz")])
def test_what_is_missing_is_named(kind: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Features(kind)
