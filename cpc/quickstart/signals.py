"""The signals quickstart: recordings of a smartwatch. Probes predict the exercise, by folds over people."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cpc.data.batch import Batch
from cpc.data.signals.corpora import CHANNELS, CLASSES, RATE_HZ, read_installed_smartwatch, write_recordings
from cpc.quickstart.recipe import ACCURACY, CEILING, WHICH_ARE_BOUNDS, Config, Recipe, Study, part, pretraining
from cpc.quickstart.time_budget import Precision

LATENT_DIM, CONTEXT_DIM = 64, 64
BATCH_SIZE, WINDOW_SECONDS, PROBE_WINDOW_SECONDS = 16, 10.24, 4.0
RECIPE_CHOSEN_ON = (
    "The recipe was chosen on another corpus, recordings of a smartphone (HAPT). Only the input of the encoder was "
    "chosen on the people of this corpus: of three inputs, companded signals gave the highest accuracy."
)
CAPTION = (
    f"Windows of {PROBE_WINDOW_SECONDS:g} s, five folds over people: no probe has seen labels of the people it is "
    "tested on. The model was pretrained on recordings of these people, without labels. A window is encoded by itself "
    "(isolated) or within its recording (stream); its vectors are pooled to mean and deviation. Intervals resample "
    "people."
)
HEADING = """<h1>cpc quickstart: what contrastive pretraining learnt from a smartwatch</h1>
<p>This page has the accuracy of a linear probe that predicts one of seven exercises from the pretrained features, with
baselines. It also has the information of contexts about future latents, during training and at its end.</p>
"""
BASELINES = """<p><b>Baselines.</b> <i>Majority</i> always answers the most frequent class. <i>Hand-made</i> are
statistics, band powers and correlations of each window. <i>Random</i> is the same architecture, initialised from data
and never trained; it encodes a window within its recording. This baseline is strong on signals. <i>Supervised</i> is
the same architecture trained on the labels. <i>CPC</i> is the model pretrained here, which has seen no label.</p>
"""


def make(corpus: Path, seed: int) -> tuple[dict[str, Path], dict[str, Any]]:
    """Write the recordings that ship with seglearn; one person is held out from pretraining."""
    source = corpus / "smartwatch.npz"
    arrays = read_installed_smartwatch()
    people = np.unique(arrays.group)
    held_out = np.random.default_rng(seed).choice(people)  # for the bound; probes use folds
    arrays = replace(arrays, split=np.where(arrays.group == held_out, "valid", "train").tolist())
    corpus.mkdir(parents=True, exist_ok=True)
    write_recordings(source, arrays)  # written even if it exists, since another seed gives other splits
    return {"smartwatch": source}, {
        "recipe_chosen_on": RECIPE_CHOSEN_ON,
        "corpus_minutes": round(float(np.sum(arrays.length)) / RATE_HZ / 60, 1),
        "num_people": len(people),
        "num_classes": len(CLASSES),
        "latent_dim": LATENT_DIM,
        "context_dim": CONTEXT_DIM,
    }


def config(source: Path, seed: int, precision: Precision) -> Config:
    """Return configs/signals/activity.yaml for this corpus, with a smaller width and companded signals."""
    sampling: Config = {"window_seconds": WINDOW_SECONDS, "batch_size": BATCH_SIZE, "eval_batches": 4}
    return pretraining(
        (20, 100, 500),
        part("data.Signals", source=str(source), seed=seed, **sampling),
        encoder=part("encoders.SignalEncoder", channels=len(CHANNELS), dim=LATENT_DIM, sample_rate_hz=RATE_HZ),
        context=part("contexts.GRU", dim=CONTEXT_DIM),
        predictor=part("predictors.Bilinear", num_steps=8),
        loss=part("losses.Contrastive", negatives="mixed", skip_steps=2, compute=precision.loss),
    )


RECIPE = Recipe(
    extras={"seglearn": "signals", "plotly.offline": "dashboard"},
    making="recordings",
    make=make,
    studies={
        "smartwatch": Study(
            config=config,
            noise=lambda: Batch.of(torch.randn(BATCH_SIZE, round(WINDOW_SECONDS * RATE_HZ), len(CHANNELS))),
            seconds=90.0,
            most_steps=600,
            tasks={"label": "label"},
            probe={
                "features": ("c", "c_stream"),
                "baselines": ("majority", "hand", "random", "supervised"),
                "supervised_seconds": 10.0,  # for each fold
                "window_seconds": PROBE_WINDOW_SECONDS,
                "hop_seconds": 2.0,
            },
        )
    },
    heading=HEADING,
    how_to_read=[CEILING, WHICH_ARE_BOUNDS, ACCURACY, BASELINES],
    facts={"corpus_minutes": "{:.0f} minutes of exercises", "num_people": "{} people", "num_classes": "{} exercises"},
    representations={
        "majority": "majority",
        "hand": "hand-made",
        "random_stream": "random",
        "cpc": "CPC isolated",
        "cpc_stream": "CPC stream",
        "supervised": "supervised",
    },
    caption=CAPTION,
)
