"""Corpora that are open and decoded, as a run has them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cpc.data import Audio, Modality
from cpc.data.recordings.corpus import RecordingCorpus
from cpc.probes import Extraction, FeatureStore, Task

# What `cpc evaluate` leaves in config.json.
BOUND = {
    "schema": 1,
    "step": 7,
    "split": "valid",
    "strategy": "mixed",
    "steps": [3, 4],
    "directions": ["", ""],
    "mi_bound_nats": [1.5, None],
    "mi_ceiling_nats": [2.0, 2.0],
    "standard_error_nats": [0.25, None],
    "reading": "in-sequence candidates, not a bound on I(z; c)",
}


def opened(data: Modality, encoder: Any) -> Any:
    corpus = data.open(encoder)
    data.prepare(corpus, is_training=True)
    return corpus


def open_audio(source: str | Path, encoder: Any, window_samples: int, **options: Any) -> RecordingCorpus:
    options = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}
    return opened(Audio(manifest=str(source), window_samples=window_samples, **options), encoder)


def stored(task: Task, features: Sequence[str], model: Any = None) -> FeatureStore:
    """The features of all observations of a task."""
    extractor = task.probe_data.feature_extractor(features, model)
    return FeatureStore.extract(extractor, task.rows, task.probe_data.name, Extraction(progress=False))
