"""The encoder on log-mel frames."""

import pytest
import torch

from cpc.data.audio.spectral import LogMel
from cpc.encoders import MelEncoder


def test_latents_are_two_layers_on_standardised_frames() -> None:
    torch.manual_seed(0)
    encoder = MelEncoder(dim=5, hidden_dim=7, num_mels=20)
    encoder.set_statistics(0.01, 0.3)
    x = 0.3 * torch.randn(3, 4000) + 0.01
    encoder.initialise_from(x)
    spectra = LogMel(20)
    spectra.set_statistics(0.01, 0.3)
    frames = spectra(x).double()
    frames = (frames - frames.mean((0, 1))) / frames.std((0, 1))
    first, _, second = encoder.layers
    hidden = (frames @ first.weight.T.double() + first.bias).clamp(min=0)
    expected = hidden @ second.weight.T.double() + second.bias
    torch.testing.assert_close(encoder(x).double(), expected, atol=1e-4, rtol=1e-4)
    assert encoder(x).shape == (3, encoder.num_latents(4000), 5)


def test_a_latent_sees_its_own_window_alone() -> None:
    encoder = MelEncoder(dim=4, hidden_dim=6, num_mels=20)
    x = torch.randn(1, 3200, requires_grad=True)
    encoder(x)[0, 10].sum().backward()
    (seen,) = x.grad[0].nonzero(as_tuple=True)
    assert seen.min() >= 1600 - 120
    assert seen.max() <= 1600 + 279


@pytest.mark.parametrize("widths", [{"dim": 0}, {"hidden_dim": 0}])
def test_widths_below_one_are_refused(widths: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        MelEncoder(**widths)
