"""Corpora that are open and decoded, as a run has them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cpc.data import Audio
from cpc.data.modality import Modality
from cpc.data.recordings.corpus import RecordingCorpus
from cpc.probes import Extraction, FeatureStore, Task


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
