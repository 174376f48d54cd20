"""The signals quickstart: recordings of a smartwatch. Probes predict the exercise, by folds over people."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cpc.data.signals.corpora import CHANNELS, CLASSES, RATE_HZ, read_installed_smartwatch, write_recordings
from cpc.quickstart.recipe import Config, Recipe, Study, heading, part, pretraining

PROBE_WINDOW_SECONDS = 4.0
CHOSEN_ON = (
    "The recipe was chosen on another corpus, recordings of a smartphone (HAPT). Only the input of the encoder was "
    "chosen on the people of this corpus: of three inputs, companded signals gave the highest accuracy."
)
CAPTION = (
    f"Windows of {PROBE_WINDOW_SECONDS:g} s, five folds over people: no probe has seen labels of the people it is "
    "tested on. The model was pretrained on recordings of these people, without labels. A window is encoded by itself "
    "(isolated) or within its recording (stream); its vectors are pooled to mean and deviation. Intervals resample "
    "people."
)


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
        "corpus_minutes": round(float(np.sum(arrays.length)) / RATE_HZ / 60, 1),
        "num_people": len(people),
        "num_classes": len(CLASSES),
    }


def config(source: Path, seed: int) -> Config:
    """Return configs/signals/activity.yaml for this corpus, with a smaller width and companded signals."""
    sampling: Config = {"window_seconds": 10.24, "batch_size": 16, "eval_batches": 4}
    return pretraining(
        (20, 100, 500),
        part("data.Signals", source=str(source), seed=seed, **sampling),
        encoder=part("encoders.SignalEncoder", channels=len(CHANNELS), dim=64, sample_rate_hz=RATE_HZ),
        context=part("contexts.GRU", dim=64),
        predictor=part("predictors.Bilinear", num_steps=8),
        loss=part("losses.Contrastive", negatives="mixed", skip_steps=2),
    )


RECIPE = Recipe(
    extras={"seglearn": "signals"},
    making="recordings",
    make=make,
    chosen_on=CHOSEN_ON,
    studies={
        "smartwatch": Study(
            config=config,
            num_steps=600,
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
    heading=heading("what contrastive pretraining learnt from a smartwatch", "one of seven exercises"),
    facts={"corpus_minutes": "{:.0f} minutes of exercises", "num_people": "{} people", "num_classes": "{} exercises"},
    representations=("majority", "hand", "random_stream", "cpc", "cpc_stream", "supervised"),
    caption=CAPTION,
)
