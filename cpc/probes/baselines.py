"""What a probed representation is compared with: the same network untrained, and no representation at all.

B windows, S samples.
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from cpc.checkpoint import build
from cpc.data.audio import Audio
from cpc.data.batches import UniformBatches
from cpc.data.windows import WindowDataset
from cpc.model import CPC
from cpc.probes.results import Answers
from cpc.probes.targets import UNSEEN, Examples

WINDOW_LATENTS = 128
_NUM_INITIALISATION_WINDOWS = 32


def untrained_model(
    architecture: dict[str, Any],
    audio: Audio,
    statistics: tuple[float, float],
    seed: int,
    *,
    trusted_packages: tuple[str, ...] = ("cpc",),
) -> CPC:
    """The architecture as training would find it: random weights, corpus statistics, data initialisation.

    Args:
        architecture: of a model's config.json.
        audio: the training part.
        statistics: mean and deviation of the corpus' samples.
        seed: of weights and windows.
        trusted_packages: packages whose classes the architecture may name.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: CPC = build(architecture, trusted_packages=trusted_packages)
    model.encoder.set_statistics(*statistics)
    model.initialise_from(_initialisation_windows(audio, WINDOW_LATENTS * model.encoder.hop_samples, seed))
    return model.eval()


def answer_by_frequency(train: Examples, test: Examples, num_classes: int) -> Answers:
    """The answers of who knows only how frequent each class is in training: always the most frequent one.

    Counts start at one, so that a class without a training example keeps a likelihood.
    """
    counts = np.bincount(train.labels, minlength=num_classes)
    log_share = np.log((counts + 1) / (counts + 1).sum())
    log_likelihood = np.where(test.labels == UNSEEN, np.nan, log_share[test.labels])
    return Answers(np.full(len(test), counts.argmax()), log_likelihood)


def _initialisation_windows(audio: Audio, window_samples: int, seed: int) -> Float[Tensor, "B S"]:
    batches = UniformBatches(audio.num_samples, window_samples, _NUM_INITIALISATION_WINDOWS, 1, seed)
    return WindowDataset(audio, window_samples).__getitems__(batches.batch(0)).x
