"""What a probed representation is compared with: the same network untrained, and no representation at all."""

from typing import Any

import numpy as np
import torch

from cpc.checkpoint import build
from cpc.data.audio.files import Audio
from cpc.data.audio.windows import NUM_INITIALISATION_WINDOWS, initialisation_windows
from cpc.model import CPC
from cpc.probes.results import Answers
from cpc.probes.targets import UNSEEN, Examples


def untrained_model(
    architecture: dict[str, Any],
    audio: Audio,
    statistics: tuple[float, float],
    window_samples: int,
    seed: int,
    *,
    trusted_packages: tuple[str, ...] = ("cpc",),
) -> CPC:
    """The architecture as training would find it: random weights, corpus statistics, data initialisation.

    Args:
        architecture: of a model's config.json.
        audio: the training part.
        statistics: mean and deviation of its samples.
        window_samples: length of the windows that training would see.
        seed: of weights and windows.
        trusted_packages: packages whose classes the architecture may name.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: CPC = build(architecture, trusted_packages=trusted_packages)
    model.encoder.set_statistics(*statistics)
    model.initialise_from(initialisation_windows(audio, window_samples, NUM_INITIALISATION_WINDOWS, seed))
    return model.eval()


def answer_by_frequency(train: Examples, test: Examples, num_classes: int) -> Answers:
    """The answers of who knows only how frequent each class is in training: always the most frequent one.

    Counts start at one, so that a class without a training example keeps a likelihood.
    """
    counts = np.bincount(train.labels, minlength=num_classes)
    log_share = np.log((counts + 1) / (counts + 1).sum())
    log_likelihood = np.where(test.labels == UNSEEN, np.nan, log_share[test.labels])
    return Answers(np.full(len(test), counts.argmax()), log_likelihood)
