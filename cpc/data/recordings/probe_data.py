"""Probe data of recordings: what audio and signals share. T frames."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from cpc.data.batch import Batch
from cpc.data.probe_data import LabelsOf, ProbeData
from cpc.data.recordings.windows import NUM_INITIALISATION_WINDOWS, WindowDataset
from cpc.data.store.fingerprints import Content
from cpc.data.streams.stream import UniformBatches

MIN_GROUP_CLUSTERS = 5


class RecordingProbeData(ProbeData):
    """Features of recordings. A subclass adds the tasks and the features of its modality.

    `recording` `[num_rows]` is the recording of each row, which is a recording, or a window that is cut from it.
    """

    several_vectors = True
    # At equal cost many short windows are far better than few long windows, because each gradient sees more speakers.
    supervised: Mapping[str, Any] = {"batch_size": 32, "window_latents": 32}

    def __init__(self, corpus: Any, **where: Any) -> None:
        super().__init__(**where)
        self.corpus = corpus  # None if only files outside it are read
        self.recording = np.arange(0 if corpus is None else len(corpus.table.names))

    def prepare(self) -> None:  # noqa: D102
        self.corpus.prepare()

    @property
    def splits(self) -> Sequence[str]:
        """The split of each row."""
        splits = self.corpus.table.splits
        return [splits[recording] for recording in self.recording.tolist()]

    def name(self, row: int) -> str:  # noqa: D102
        return self.corpus.table.names[self.recording[row]]

    def clusters(self, task: str, train: np.ndarray, test: np.ndarray) -> tuple[str, np.ndarray]:
        """Return groups if the test part has at least five, none of which was trained on; else recordings."""
        group, item = self.corpus.nouns
        ids = self.corpus.group_ids[self.recording]
        tested, trained = set(ids[test].tolist()), set(ids[train].tolist())
        is_independent = -1 not in tested and not tested & trained and len(tested) >= MIN_GROUP_CLUSTERS
        return (group, ids) if task != group and is_independent else (item, self.recording)

    def groups(self, task: str) -> np.ndarray:
        """Return groups if all are known; recordings if not, or if the groups are the task."""
        ids = self.corpus.group_ids[self.recording]
        return self.recording if task == self.corpus.nouns[0] or (ids < 0).any() else ids

    def units(self, kind: str, task: str) -> np.ndarray | None:  # noqa: D102
        ids = self.corpus.group_ids[self.recording] if kind == "speaker" else self.recording
        return None if (ids < 0).any() or (kind == "speaker" and task == self.corpus.nouns[0]) else ids

    def sources(self) -> np.ndarray:  # noqa: D102
        return self.recording

    def content(self, rows: np.ndarray) -> Content | None:
        """Return the content of the recordings of these rows, each recording once."""
        return self.corpus.content(np.unique(self.recording[rows]))

    def minutes(self, rows: np.ndarray) -> np.ndarray:
        """Return the minutes of each row; 0 for a recording that was left out."""
        return self.num_samples(rows) / self.corpus.encoder.sample_rate_hz / 60

    def num_samples(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of samples of each row."""
        return self.corpus.samples.num_samples[self.recording[rows]]

    def initialise(self, model: Any, seed: int) -> None:
        """Initialise by the statistics of the training split, and by windows of this split without padding."""
        model.encoder.set_statistics(*self.corpus.statistics(self.train_split))
        windows = self.corpus.initialisation_windows(self.train_split, NUM_INITIALISATION_WINDOWS, seed)
        model.initialise_from(windows)

    def batches(self, rows: np.ndarray, labels: LabelsOf, model: Any, protocol: Any) -> Iterator[Batch]:
        """Yield batches of windows that are cut from recordings at random."""
        encoder = model.encoder
        window_samples = protocol.window_latents * encoder.hop_samples
        dataset = WindowDataset(
            self.corpus.samples,
            window_samples,
            self.recording[rows],
            labels=lambda row, start, num_latents: labels(row, encoder, start, num_latents),
            num_latents=int(encoder.num_latents(window_samples)),
            augmenter=self.corpus.training_augmenter if protocol.augment else None,
            has_missing=self.corpus.has_missing,
        )
        stream = UniformBatches(**dataset.draws, batch_size=protocol.batch_size, seed=protocol.seed)
        return (dataset.__getitems__(indices) for indices in stream)
