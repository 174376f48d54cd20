"""One warning if the input of a trained encoder has another scale than its training data."""

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image
from torch import Tensor, nn

import cpc
from cpc.encoders import AudioEncoder, FrameEncoder, PatchEncoder, SignalEncoder, TinyTrunk
from cpc.encoders.encoder import check_scale

SHARED = Path(__file__).parents[3] / "shared" / "data"


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
    encoder = PatchEncoder(TinyTrunk(4, 3, (4, 2), (4, 4)), 8, 8)
    encoder.set_statistics(torch.tensor([0.5, 0.4, 0.3]), torch.tensor([0.2, 0.25, 0.3]))
    return encoder, draw(2, 3, 16, 16).sigmoid()


def frames() -> tuple[nn.Module, Tensor]:
    encoder = FrameEncoder((36, 36), 4)
    encoder.set_statistics(0.4, 0.2)
    return encoder, (255 * draw(2, 3, encoder.num_frames, *encoder.frame_size).sigmoid()).byte()


def warned(encoder: Any, *batches: Tensor) -> list[str]:
    context = cpc.contexts.GRU(4) if encoder.latents == "sequences" else cpc.contexts.PixelCNN(4, 1, 4)
    model = cpc.CPC(encoder, context, cpc.predictors.Bilinear(1)).eval()
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        for x in batches:
            model.encode(x)
    return [str(each.message) for each in caught]


@pytest.mark.parametrize(
    ("make", "scale", "said"),
    [
        (audio, 32768.0, r"the mean -?[\d.]+ and the deviation 3.\d+e\+04, not about 0 and 1"),  # int16 as it is
        (audio, 1 / 32768, r"the deviation 3.\d+e-05, not"),
        (signals, 1000.0, r"the mean 5.02e\+03 and the deviation 1.07e\+03 in channel pulse"),  # nV for uV
        (signals, 0.001, r"the deviation 0.00\d+ in channel"),  # mV for uV
        (images, 255.0, r"the mean \d+ and the deviation \d+ in channel"),  # 0..255 as 0..1
        (images, 1 / 255, r"the deviation 0.00\d+ in channel"),
        (frames, 1 / 255, r"the mean -1.99 and the deviation 0.00\d+, not"),
    ],
)
def test_another_scale_is_warned_of_once(make: Any, scale: float, said: str) -> None:
    encoder, x = make()
    assert not warned(encoder, x, x * scale)
    encoder, x = make()
    (message,) = warned(encoder, torch.zeros_like(x), x * scale, x * scale)  # silence decides nothing
    assert re.search(said, message), message


def test_constant_channels_and_missing_samples_are_no_other_scale() -> None:
    encoder, x = signals()
    x[..., 0] = torch.nan
    x[0] = 5.0
    assert not warned(encoder, x)


CORPORA = {
    "ecg-small": lambda: np.load(SHARED / "ludb/ludb.npz")["ecg"][::5, :, :2000].transpose(0, 2, 1),
    "activity-small": lambda: np.load(SHARED / "hapt/hapt.npz")["x"][:797400].reshape(-1, 200, 6)[::10],
    "speech-small": lambda: [
        soundfile.read(file)[0][:64000] for file in sorted((SHARED / "timit_dev").rglob("*.flac"))
    ],
    "photographs-small": lambda: [
        np.asarray(Image.open(file).convert("RGB").resize((96, 96))).transpose(2, 0, 1) / 255
        for file in sorted((SHARED / "caltech101_small/test").rglob("*.jpg"))[::20]
    ],
}


@pytest.mark.parametrize("name", CORPORA)
def test_other_people_and_other_photographs_are_no_other_scale(name: str) -> None:
    if not SHARED.is_dir():
        pytest.skip("needs the corpora in ../shared/data")
    encoder = cpc.load_pretrained(name).encoder
    for each in CORPORA[name]():
        encoder.is_scale_checked = False
        check_scale(encoder, torch.from_numpy(np.array(each, np.float32))[None])
