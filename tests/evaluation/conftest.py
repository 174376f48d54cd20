"""A small untrained model and a small corpus for the tests of evaluation."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import cpc
from cpc.data.audio.index import index_folder


@pytest.fixture(scope="module")
def model() -> cpc.CPC:
    torch.manual_seed(0)
    model = cpc.CPC(cpc.encoders.AudioEncoder(dim=8), cpc.contexts.GRU(dim=8), cpc.predictors.Bilinear(num_steps=2))
    model.initialise_from(torch.randn(4, 1600))
    return model


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory, write_audio: Callable[..., Path]) -> Path:
    """15 files of 2 windows by 3 speakers, 30 windows in all."""
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(15):
        write_audio(folder / "valid" / f"speaker{number % 3}" / f"{number}.wav", seconds=0.25, seed=number)
    index_folder(folder, split_level=0, speaker_level=1, progress=False)
    return folder
