"""A small untrained model and a small corpus for the tests of evaluation."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import cpc


@pytest.fixture(scope="module")
def model() -> cpc.CPC:
    torch.manual_seed(0)
    model = cpc.CPC(cpc.encoders.AudioEncoder(dim=8), cpc.contexts.GRU(dim=8), cpc.predictors.Bilinear(num_steps=2))
    model.initialise_from(torch.randn(4, 1600))
    return model


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory, write_corpus: Callable[..., Path]) -> Path:
    """15 files of 2 windows by 3 speakers, 30 windows in all."""
    return write_corpus(tmp_path_factory.mktemp("corpus"), num_speakers=3, seconds=0.25, valid=15)
