"""The encoder on log-mel frames."""

import pytest
import torch

from cpc.encoders import LogMel, MelEncoder


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
