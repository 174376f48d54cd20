"""One warning if the input of a trained encoder has another scale than its training data."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cpc
from cpc.encoders import AudioEncoder, FrameEncoder, PatchEncoder, SignalEncoder, TinyTrunk

SHARED = Path(__file__).parents[3] / "shared" / "data"
Observe = Callable[[], Tensor]


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def audio() -> tuple[nn.Module, Tensor]:
    encoder = AudioEncoder(dim=4)
    encoder.set_statistics(0.001, 0.06)
    return encoder, 0.06 * draw(2, 4000)


def signals() -> tuple[nn.Module, Tensor]:
    encoder = SignalEncoder(2, 4, 20, channel_names=["ecg", "pulse"])
    encoder.set_statistics([0.0, 5.0], [200.0, 1.0])
    x = draw(2, 200, 2) * torch.tensor([200.0, 1.0]) + torch.tensor([0.0, 5.0])
    x[0, :50, 1] = torch.nan
    return encoder, x


def images() -> tuple[nn.Module, Tensor]:
    encoder = PatchEncoder(trunk=TinyTrunk(dim=4, hidden_dims=(4,), strides=(2, 2)), patch_size=8, stride=8)
    encoder.set_statistics(torch.tensor([0.5, 0.4, 0.3]), torch.tensor([0.2, 0.25, 0.3]))
    return encoder, draw(2, 3, 16, 16).sigmoid()


def frames() -> tuple[nn.Module, Tensor]:
    encoder = FrameEncoder()
    encoder.set_statistics(0.4, 0.2)
    return encoder, (255 * draw(2, 3, encoder.num_frames, *encoder.frame_size).sigmoid()).byte()


def warned(encoder: nn.Module, *batches: Tensor) -> list[str]:
    model: Any = cpc.CPC(
        encoder,
        cpc.contexts.GRU(4) if encoder.latents == "sequences" else cpc.contexts.PixelCNN(4),
        cpc.predictors.Bilinear(1),
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for x in batches:
            model.eval().encode(x)
    return [str(each.message) for each in caught]


@pytest.mark.parametrize(
    ("make", "scale", "said"),
    [
        (audio, 32768.0, r"mean -?\d+ and the deviation 3.3e\+04, not"),  # int16 as it is
        (audio, 1 / 32768, r"deviation 3.\d+e-05, not"),
        (signals, 1000.0, r"deviation \d+(e\+03)? in channel (ecg|pulse), not"),  # nV for uV
        (signals, 0.001, r"mean -?\d.*deviation 0.00\d+ in channel"),  # mV for uV
        (images, 255.0, r"mean \d+ and the deviation \d+ in channel 0"),
        (images, 1 / 255, r"deviation 0.00\d+ in channel"),
        (frames, 1 / 255, r"mean -1.99 and the deviation 0, not"),
    ],
)
def test_another_scale_is_warned_of_once(make: Any, scale: float, said: str) -> None:
    encoder, x = make()
    assert not warned(encoder, x)
    encoder, _ = make()
    found = warned(encoder, torch.zeros_like(x), *[x * scale] * 3)
    assert len(found) == 1
