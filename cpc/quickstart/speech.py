"""The speech quickstart: an hour of synthesised speech, probed for phones and speakers."""

from pathlib import Path
from typing import Any

from cpc.data.synthetic.speech import synthesize
from cpc.quickstart.recipe import Config, Recipe, Study, heading, part, pretraining

# The recipe was chosen on the corpus of seed 0. No test speaker of the corpus of seed 63 shares a voice variant of
# espeak-ng with a test speaker of seed 0: docs/decisions/quickstart_and_commands.md.
FIRST_CORPUS_SEED = 63
CHOSEN_ON = (
    "The recipe was chosen on the valid split of the corpus of seed 0, and the penalty of each probe on held-out "
    "speakers or files of its training part. This is the corpus of seed {corpus_seed}: its speakers, recordings and "
    "test sentences were drawn again, but espeak-ng, its accents and voice variants, and the source of all sentences "
    "are the same."
)
CAPTION = (
    "Phones: frames of speakers and sentences that training does not use. Speaker: frames of other sentences of the "
    "same speakers."
)


def make(corpus: Path, seed: int) -> tuple[dict[str, Path], dict[str, Any]]:
    """Synthesise the corpus of `FIRST_CORPUS_SEED` + seed."""
    corpus_seed = FIRST_CORPUS_SEED + seed
    manifest = synthesize(corpus, seed=corpus_seed)
    return {"speech": corpus}, {
        "corpus_seed": corpus_seed,
        "corpus_minutes": round(float(manifest.seconds.sum()) / 60, 1),
        "num_speakers": len(set(manifest.column("speaker"))),
    }


def config(source: Path, seed: int) -> Config:
    """Return the config of configs/small_speech.yaml, without augmentation and with negatives of other speakers."""
    # Negatives of the same sequence teach phones; negatives of other sequences teach the speaker
    # (docs/results/speech.md).
    negatives: Config = {"negatives": "mixed", "auxiliary_negatives": {"sequence_only": 0.85}, "skip_steps": 2}
    sampling: Config = {"batch_size": 8, "sampler": "same_speaker", "speakers_per_batch": 4, "eval_batches": 8}
    return pretraining(
        (20, 200, 200),
        part("data.Audio", manifest=str(source), window_samples=20480, seed=seed, **sampling),
        encoder=part("encoders.MelEncoder", dim=256, hidden_dim=512, num_frames=5),
        context=part("contexts.GRU", dim=512),
        predictor=part("predictors.Bilinear", num_steps=12),
        loss=part("losses.Contrastive", **negatives),
    )


RECIPE = Recipe(
    extras={"espeakng_loader": "speech"},
    making="synthesise",
    make=make,
    chosen_on=CHOSEN_ON,
    studies={
        "speech": Study(
            config=config,
            num_steps=1600,
            evaluation={"num_batches": 48},
            tasks={"phones": "phones", "speaker": "speaker"},
            probe={"train_minutes": 10.0, "supervised_seconds": 15.0},
        )
    },
    heading=heading("what contrastive pretraining learnt", "phones and speakers"),
    facts={"corpus_minutes": "{:.0f} minutes of speech", "num_speakers": "{} speakers"},
    representations=("majority", "random", "mfcc", "cpc_z", "cpc", "supervised"),
    caption=CAPTION,
)
