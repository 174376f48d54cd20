"""The speech quickstart: an hour of synthesised speech, probed for phones and speakers."""

from pathlib import Path
from typing import Any

import torch

from cpc.data.batch import Batch
from cpc.data.synthetic.speech import synthesize
from cpc.pages.chart import Chart
from cpc.quickstart.phone_map import contexts_chart, map_of_contexts
from cpc.quickstart.recipe import ACCURACY, CEILING, WHICH_ARE_BOUNDS, Config, Recipe, Run, Study, part, pretraining
from cpc.quickstart.time_budget import Precision

# The recipe was chosen on the corpus of seed 0. No test speaker of the corpus of seed 63 shares a voice variant of
# espeak-ng with a test speaker of seed 0: docs/decisions/quickstart_and_commands.md.
FIRST_CORPUS_SEED = 63
RECIPE_CHOSEN_ON = (
    "The recipe was chosen on the valid split of the corpus of seed 0, and the penalty of each probe on held-out "
    "speakers or files of its training part. This is the corpus of seed {}: its speakers, recordings and test "
    "sentences were drawn again, but espeak-ng, its accents and voice variants, and the source of all sentences are "
    "the same."
)
LATENT_DIM, CONTEXT_DIM = 256, 512
BATCH_SIZE, WINDOW_SAMPLES = 8, 20480
CAPTION = (
    "Phones: frames of speakers and sentences that training does not use. Speaker: frames of other sentences of the "
    "same speakers."
)
HEADING = """<h1>cpc quickstart: what contrastive pretraining learnt</h1>
<p>This page has the accuracy of linear probes that predict phones and speakers from the pretrained features, with
baselines. It also has the information of contexts about future latents, during training and at its end.</p>
"""
BASELINES = """<p><b>Baselines.</b> <i>Majority</i> always answers the most frequent class. <i>Random c</i> are
contexts of the same architecture, initialised from data and never trained; they show the contribution of the
architecture. <i>MFCC</i> are hand-made spectral features. <i>Supervised</i> is the same architecture trained on the
labels, for as many steps as fit in its seconds on this machine; the number of steps is given with its accuracy. <i>CPC
z</i> and <i>CPC c</i> are latents and contexts of the model pretrained here, without labels.</p>
"""


def make(corpus: Path, seed: int) -> tuple[dict[str, Path], dict[str, Any]]:
    """Synthesise the corpus of `FIRST_CORPUS_SEED` + seed."""
    corpus_seed = FIRST_CORPUS_SEED + seed
    manifest = synthesize(corpus, seed=corpus_seed)
    seconds = manifest.seconds
    return {"speech": corpus}, {
        "recipe_chosen_on": RECIPE_CHOSEN_ON.format(corpus_seed),
        "corpus_seed": corpus_seed,
        "corpus_minutes": round(float(seconds.sum()) / 60, 1),
        "num_speakers": len(set(manifest.column("speaker"))),
        "latent_dim": LATENT_DIM,
        "context_dim": CONTEXT_DIM,
    }


def config(source: Path, seed: int, precision: Precision) -> Config:
    """Return the config of configs/small_speech.yaml, without augmentation and with negatives of other speakers."""
    # Negatives of the same sequence teach phones; negatives of other sequences teach the speaker
    # (docs/results/speech.md).
    negatives: Config = {"negatives": "mixed", "auxiliary_negatives": {"sequence_only": 0.85}, "skip_steps": 2}
    sampling: Config = {"batch_size": BATCH_SIZE, "sampler": "same_speaker", "speakers_per_batch": 4, "eval_batches": 8}
    return pretraining(
        (20, 200, 200),
        part("data.Audio", manifest=str(source), window_samples=WINDOW_SAMPLES, seed=seed, **sampling),
        encoder=part("encoders.MelEncoder", dim=LATENT_DIM, hidden_dim=512, num_frames=5),
        context=part("contexts.GRU", dim=CONTEXT_DIM),
        predictor=part("predictors.Bilinear", num_steps=12),
        loss=part("losses.Contrastive", compute=precision.loss, **negatives),
    )


def figures(run: Run) -> list[Chart]:
    """Return the map of contexts."""
    return [contexts_chart(*map_of_contexts(run.folder, run.source, run.device))]


RECIPE = Recipe(
    extras={"espeakng_loader": "speech", "plotly.offline": "dashboard"},
    making="synthesise",
    make=make,
    studies={
        "speech": Study(
            config=config,
            noise=lambda: Batch.of(torch.randn(BATCH_SIZE, WINDOW_SAMPLES)),
            seconds=360.0,
            evaluation={"num_batches": 48},
            tasks={"phones": "phones", "speaker": "speaker"},
            probe={"train_minutes": 10.0, "supervised_seconds": 15.0},
            figures=figures,
        )
    },
    heading=HEADING,
    how_to_read=[CEILING, WHICH_ARE_BOUNDS, ACCURACY, BASELINES],
    facts={"corpus_minutes": "{:.0f} minutes of speech", "num_speakers": "{} speakers"},
    representations={
        "majority": "majority",
        "random": "random c",
        "mfcc": "MFCC",
        "cpc_z": "CPC z",
        "cpc": "CPC c",
        "supervised": "supervised",
    },
    caption=CAPTION,
)
