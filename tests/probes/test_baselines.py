"""The same network untrained, and no network at all."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import cpc
from cpc.checkpoint import describe
from cpc.data.audio.windows import NUM_INITIALISATION_WINDOWS
from cpc.probes.baselines import answer_by_frequency, untrained_model
from cpc.probes.targets import UNSEEN, Examples


class Noise:
    """Three files, of which the last is shorter than a window; keeps what was read."""

    sample_rate_hz = 16000
    num_samples = np.array([30_000, 25_000, 1_000])

    def __init__(self) -> None:
        self.seen: list[np.ndarray] = []

    def read(self, file_index: int, start: int, num_samples: int) -> np.ndarray:
        wave = 0.3 + 0.1 * np.random.default_rng(file_index).standard_normal(self.num_samples[file_index])
        self.seen.append(wave.astype(np.float32)[start : start + num_samples])
        return self.seen[-1]


def test_an_untrained_model_is_initialised_from_data_and_repeats(model: cpc.CPC) -> None:
    state, audio = torch.get_rng_state(), Noise()
    first = untrained_model(describe(model), audio, (0.3, 0.1), window_samples=4_000, seed=5)
    again, other = (untrained_model(describe(model), Noise(), (0.3, 0.1), 4_000, seed) for seed in (5, 6))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(first.state_dict().values(), again.state_dict().values(), strict=True))
    assert not torch.equal(first.encoder.layers[0].weight, other.encoder.layers[0].weight)
    assert first.is_initialised
    assert first.encoder.input_mean.item() == pytest.approx(0.3)
    assert not first.training
    # Data initialisation: on its own windows, without a padded one, every channel of the first layer is standardised.
    windows = torch.from_numpy(np.stack(audio.seen))
    assert windows.shape == (NUM_INITIALISATION_WINDOWS, 4_000)
    layer = first.encoder.layers[0]
    with torch.no_grad():
        convolved = F.conv1d((windows[:, None] - 0.3) / 0.1, layer.weight, None, layer.stride, layer.padding)
        std, mean = torch.std_mean(convolved * layer.scale[:, None] + layer.bias[:, None], (0, 2))
    np.testing.assert_allclose(mean, 0, atol=1e-4)
    np.testing.assert_allclose(std, 1, atol=1e-4)


def test_answers_by_frequency() -> None:
    def examples(labels: list[int]) -> Examples:
        return Examples(np.zeros((9, 1), np.float32), np.arange(len(labels)), np.array(labels), np.arange(len(labels)))

    answers = answer_by_frequency(examples([0, 1, 1]), examples([1, 0, 2, UNSEEN]), 3)
    assert answers.predicted.tolist() == [1, 1, 1, 1]
    np.testing.assert_allclose(np.exp(answers.log_likelihood_nats), [3 / 6, 2 / 6, 1 / 6, np.nan])
