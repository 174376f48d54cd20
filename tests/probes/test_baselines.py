"""The same network untrained, and no network at all."""

import numpy as np
import pytest
import torch

import cpc
from cpc.checkpoint import describe
from cpc.probes.baselines import answer_by_frequency, untrained_model
from cpc.probes.targets import UNSEEN, Examples


class Noise:
    sample_rate_hz = 16000
    num_samples = np.array([30_000, 25_000])

    def read(self, file_index: int, start: int, num_samples: int) -> np.ndarray:
        rng = np.random.default_rng(file_index)
        return (0.3 + 0.1 * rng.standard_normal(30_000)).astype(np.float32)[start : start + num_samples]


def test_an_untrained_model_is_initialised_from_data_and_repeats(model: cpc.CPC) -> None:
    state = torch.get_rng_state()
    first, again, other = (untrained_model(describe(model), Noise(), (0.3, 0.1), seed) for seed in (5, 5, 6))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(first.state_dict().values(), again.state_dict().values(), strict=True))
    assert not torch.equal(first.encoder.layers[0].weight, other.encoder.layers[0].weight)
    assert first.is_initialised
    assert first.encoder.input_mean.item() == pytest.approx(0.3)
    assert not first.training
    # data initialisation: pre-activations of unit deviation make half of the rectified units active
    with torch.no_grad():
        latents = first.encoder(torch.from_numpy(Noise().read(0, 0, 20_000))[None])
    assert 0.3 < (latents > 0).float().mean() < 0.7


def test_answers_by_frequency() -> None:
    def examples(labels: list[int]) -> Examples:
        return Examples(np.zeros((9, 1), np.float32), np.arange(len(labels)), np.array(labels), np.arange(len(labels)))

    answers = answer_by_frequency(examples([0, 1, 1]), examples([1, 0, 2, UNSEEN]), 3)
    assert answers.predicted.tolist() == [1, 1, 1, 1]
    np.testing.assert_allclose(np.exp(answers.log_likelihood_nats), [3 / 6, 2 / 6, 1 / 6, np.nan])
