"""The shipped models: config, corpus, licence, and the probes on their cards."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.pretrained import sources

CONFIGS = Path(__file__).parents[2] / "configs"
Source = Callable[[Path, Path], Path]


@dataclass(frozen=True)
class Figures:
    """A report of `cpc probe` on the card.

    Attributes:
        source: prepares the corpus from the folder of all corpora, in a folder for manifests.
        options: arguments of `cpc.probes.report.probe`.
        alignments: folder of the corpus whose phone alignments the probe reads, if any.
        has_abx: also measure ABX between any neighbours on these alignments.
    """

    source: Source
    options: Mapping[str, Any]
    alignments: str | None = None
    has_abx: bool = False


@dataclass(frozen=True)
class Recipe:
    """How a model is made.

    Attributes:
        config: file in configs.
        source: prepares the corpus that the model is pretrained on; as in `Figures`.
        source_option: option of `cpc pretrain` that names the corpus.
        license: licence of the weights, by its name on the Hub.
        data_name: the corpus, for the card.
        figures: probes by the name of their report.
        options: options of `cpc pretrain` that differ from the config.
    """

    config: str
    source: Source
    source_option: str
    license: str
    data_name: str
    figures: Mapping[str, Figures]
    options: Sequence[str] = ()


PHONES = {"task": "phones", "folds": "speaker", "features": ("c", "z", "mfcc"), "baselines": ("majority", "random")}
HAND_MADE = ("majority", "random", "hand")
ACTIVITIES = {"window_seconds": 2.56, "hop_seconds": 1.28, "features": ("c", "c_stream")}
EXERCISES = {"window_seconds": 4.0, "hop_seconds": 2.0, "features": ("c", "c_stream")}
RECIPES = {
    "speech-small": Recipe(
        "speech_small.yaml",
        sources.an4,
        "manifest",
        "cc-by-4.0",
        "CMU AN4",
        {
            "probe": Figures(sources.timit, PHONES, alignments="timit_dev", has_abx=True),
            "probe_all_sentences": Figures(sources.timit_all, PHONES, alignments="timit_dev"),
            "probe_speakers": Figures(
                sources.timit,
                {
                    "task": "speaker",
                    "test_split": "test",
                    "features": ("c", "z", "mfcc"),
                    "baselines": ("majority", "random"),
                },
            ),
        },
    ),
    "photographs-small": Recipe(
        "image/small_photos.yaml",
        sources.photographs,
        "source",
        "cc-by-4.0",
        "Caltech-101, 10 classes",
        {
            "probe": Figures(
                sources.photographs_of_other_classes,
                {
                    "task": "class",
                    "features": ("z", "z_grid", "c", "c_grid"),
                    "baselines": ("majority", "random", "hog"),
                },
            )
        },
        ("--model.encoder.trunk.dim=144", "--trainer.max_steps=1500"),
    ),
    "activity-small": Recipe(
        "signals/activity.yaml",
        sources.npz("hapt"),
        "source",
        "cc-by-4.0",
        "HAPT, the training people",
        {
            "probe": Figures(sources.npz("hapt"), {"task": "activity", "baselines": HAND_MADE, **ACTIVITIES}),
            "probe_watch": Figures(sources.npz("watch"), {"task": "label", "baselines": HAND_MADE, **EXERCISES}),
        },
    ),
    "ecg-small": Recipe(
        "signals/ecg.yaml",
        sources.npz("ludb"),
        "source",
        "odc-by",
        "LUDB, the training people",
        {
            "probe": Figures(
                sources.npz("ludb"),
                {"task": "label", "test_split": "test", "features": ("c", "z"), "baselines": ("majority", "random")},
            )
        },
    ),
}
