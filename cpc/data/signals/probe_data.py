"""Probe data of signals: features of windows or of whole recordings, labels, and hand-made features.

T latents, D feature dim, C channels.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cpc.data.batch import Batch
from cpc.data.probe_data import UNLABELLED, FeatureExtractor, Labels, LabelsOf, ProbeData
from cpc.data.signals.corpus import SignalCorpus
from cpc.data.signals.features import HandMadeFeatures, SignalFeatureExtractor
from cpc.data.signals.folder import find_recordings
from cpc.data.signals.labels import RecordingLabels
from cpc.data.signals.windows import SignalWindows
from cpc.data.store.fingerprints import Content
from cpc.data.streams.uniform import UniformBatches

MIN_GROUP_CLUSTERS = 5


class LatentLabels(Labels):
    """Labels that vary within a recording; a latent has the label of the sample at its centre."""

    vary_within = True

    def __init__(self, corpus: SignalCorpus, task: str, rows: np.ndarray) -> None:
        self._corpus, self._task = corpus, task
        labels = corpus.labels(task)
        self._classes = labels.classes
        codes = {row: labels.codes(row, 0, corpus.num_samples(row)) for row in rows.tolist()}
        seen = {row: {self._classes[code] for code in np.unique(codes[row]) if code >= 0} for row in codes}
        super().__init__({row: names for row, names in seen.items() if names}, order=self._classes)

    def names(self, row: int) -> set[str]:
        """Return all labels of a recording."""
        return self.of_row[row]

    def codes(self, row: int, code_of: Mapping[str, int], times: Any, start: int, num_vectors: int) -> np.ndarray:
        """Return the class of every latent; `UNLABELLED` without a label."""
        table = np.array([code_of.get(name, UNLABELLED) for name in self._classes] + [UNLABELLED])
        return table[self._corpus.frame_codes(self._task, row, start, num_vectors)]


class SignalProbeData(ProbeData):
    """Features of recordings, or of windows every `hop_seconds`, with the labels of the source.

    A row is a recording without `hop_seconds`, else a window. The label of a window is its only label; a window with
    several labels, or unlabelled samples, has none. Features `c` and `z` of windows are encoded alone, `c_stream` and
    `z_stream` within the whole recording, so they also know its past.

    Args:
        corpus: the recordings; None if only files outside a corpus are read.
        window_seconds: length of the windows; without `hop_seconds` only hand-made features have windows.
        hop_seconds: distance of the windows; None: whole recordings.
        channels: channels of files outside the corpus, by name or number; None: all.
        where: other arguments of `ProbeData`.
    """

    source_unit = "recording"
    several_vectors = True
    hand_made = ("hand", "hand_past", "minirocket")
    supervised: Mapping[str, Any] = {"batch_size": 32, "window_latents": 32}

    def __init__(
        self,
        corpus: SignalCorpus | None,
        window_seconds: float,
        hop_seconds: float | None,
        channels: Sequence[str | int] | None = None,
        **where: Any,
    ) -> None:
        super().__init__(**where)
        self._corpus, self.channels = corpus, channels
        self.is_windowed = hop_seconds is not None
        self.unit = "window" if self.is_windowed else "recording"
        self.features = {"c": "", "z": "_z"}
        if not self.is_windowed:
            self.coarse = ("hand",)
        else:
            self.features |= {"c_stream": "_stream", "z_stream": "_z_stream"}
            self.default_baselines = ("majority", "random", "hand")
        if corpus is None:
            return
        rate = corpus.encoder.sample_rate_hz
        num_rows = len(corpus.recordings.names)
        self.window_samples = max(1, round(window_seconds * rate))
        if hop_seconds is None:
            self.recording, self.start = np.arange(num_rows), np.zeros(num_rows, np.int64)
            self.rows_per_window = 1
        else:
            hop = max(1, round(hop_seconds * rate))
            self.rows_per_window = -(-self.window_samples // hop)  # windows that start before a window has ended
            starts = [
                np.arange(0, max(corpus.num_samples(row) - self.window_samples, 0) + 1, hop) for row in range(num_rows)
            ]
            self.recording = np.repeat(np.arange(num_rows), list(map(len, starts)))
            self.start = np.concatenate(starts)

    @property
    def corpus(self) -> SignalCorpus:
        """The corpus; every method but `file_features` needs one."""
        assert self._corpus is not None
        return self._corpus

    @property
    def splits(self) -> Sequence[str]:
        """The split of each row."""
        splits = self.corpus.recordings.splits
        return [splits[recording] for recording in self.recording.tolist()]

    def labels(self, task: str, rows: np.ndarray) -> Labels:
        """Return the labels of the source for a task, or the subjects for `group`."""
        recordings = self.corpus.recordings
        if task == "group":
            groups = [recordings.groups[recording] for recording in self.recording.tolist()]
            return Labels({row: groups[row] for row in rows.tolist() if groups[row]})
        if task not in recordings.labels:
            known = ", ".join(["group", *recordings.labels])
            raise ValueError(f"`task` {task!r} is not among the labels of the recordings: {known}")
        labels = self.corpus.labels(task)
        if not isinstance(labels, RecordingLabels) and not self.is_windowed:
            return LatentLabels(self.corpus, task, rows)
        classes: dict[int, str] = {}
        for row in rows.tolist():
            recording = int(self.recording[row])
            length = self.corpus.num_samples(recording)
            num_samples = min(self.window_samples, length) if self.is_windowed else length
            codes = np.unique(labels.codes(recording, int(self.start[row]), num_samples))
            if len(codes) == 1 and codes[0] >= 0:
                classes[row] = labels.classes[codes[0]]
        return Labels(classes, order=labels.classes)

    def feature_extractor(self, features: Sequence[str], model: Any = None) -> FeatureExtractor:
        """Return an extractor of a model's features, or of hand-made features of windows."""
        if model is None:
            (name,) = features
            return HandMadeFeatures(name, self)
        return SignalFeatureExtractor(features, model, self)

    def find_files(self, folder: Path) -> list[str]:  # noqa: D102
        return find_recordings(folder, [".npz"])

    def name(self, row: int) -> str:
        """Return the name of the recording, and the time of the window."""
        name = self.corpus.recordings.names[self.recording[row]]
        return f"{name} from {self.start[row] / self.corpus.encoder.sample_rate_hz:g} s" if self.is_windowed else name

    def default_folds(self, task: str, num_folds: int | None) -> tuple[str | None, int | None]:
        """Return folds over the subjects, if the source has no split `test` and all subjects are known."""
        has_groups = task != "group" and all(self.corpus.recordings.groups)
        if "test" in self.corpus.recordings.splits or not has_groups:
            return None, num_folds
        return "group", num_folds or min(5, len(self.corpus.speakers))

    def default_pool(self, task: str) -> str:
        """Return `frames` for labels that vary within recordings, otherwise `mean_std`."""
        labels = self.corpus.recordings.labels
        varies = task in labels and not isinstance(labels[task], RecordingLabels)
        return "frames" if varies and not self.is_windowed else "mean_std"

    def clusters(self, task: str, train: np.ndarray, test: np.ndarray) -> tuple[str, np.ndarray]:
        """Return subjects if the test part has at least five, none of whom was trained on; else recordings."""
        ids = self.corpus.group_ids[self.recording]
        tested, trained = set(ids[test].tolist()), set(ids[train].tolist())
        is_independent = -1 not in tested and not tested & trained and len(tested) >= MIN_GROUP_CLUSTERS
        return ("group", ids) if task != "group" and is_independent else ("recording", self.recording)

    def groups(self, task: str) -> np.ndarray:
        """Return subjects if all are known; recordings if not, or if the task is `group`."""
        ids = self.corpus.group_ids[self.recording]
        return self.recording if task == "group" or (ids < 0).any() else ids

    def content(self, rows: np.ndarray) -> Content | None:
        """Return the content of the recordings of these rows, each recording once."""
        return self.corpus.content(np.unique(self.recording[rows]))

    def minutes(self, rows: np.ndarray) -> np.ndarray:
        """Return the minutes of each row."""
        lengths = self.corpus.signals.lengths[self.recording[rows]]
        samples = np.minimum(lengths, self.window_samples) if self.is_windowed else lengths
        return samples / self.corpus.encoder.sample_rate_hz / 60

    def initialise(self, model: Any, seed: int) -> None:
        """Initialise by the statistics of the training split and by windows of it."""
        model.encoder.set_statistics(*self.corpus.statistics(self.train_split))
        model.initialise_from(self.corpus.initialisation_windows(self.train_split, 32, seed))

    def untrained_names(self, learnt: Sequence[str]) -> Sequence[str]:
        """Return all probed features of the model: a random network is a strong baseline on signals."""
        return learnt or ("c",)

    def batches(self, rows: np.ndarray, labels: LabelsOf, model: Any, protocol: Any) -> Iterator[Batch]:
        """Yield batches of windows; windows of `hop_seconds` as they are, else cut from recordings at random."""
        if self.is_windowed:
            return self._batches_of_windows(rows, labels, model, protocol)
        encoder = model.encoder
        window_samples = protocol.window_latents * encoder.hop_samples
        groups = np.full(len(rows), -1)
        windows = SignalWindows(
            self.corpus.signals,
            rows,
            groups,
            None,
            window_samples,
            protocol.window_latents,
            lambda row, start, num_latents: labels(row, None, start, num_latents),
        )
        stream = UniformBatches(**windows.draws, batch_size=protocol.batch_size, seed=protocol.seed)
        return (windows.__getitems__(stream.batch(step)) for step in itertools.count())

    def record(self) -> dict[str, Any]:
        """Return facts about the source."""
        recordings = self.corpus.recordings
        windows = {"window_samples": self.window_samples} if self.is_windowed else {}
        return {
            "source": str(recordings.source),
            "num_recordings": len(recordings.names),
            "channels": list(recordings.channels),
            "sample_rate_hz": recordings.sample_rate_hz,
            **windows,
        }

    def read_window(self, row: int) -> np.ndarray:
        """Return the samples `[S, C]` of a window, or of a whole recording."""
        num_samples = self.window_samples if self.is_windowed else None
        return self.corpus.signals.read(int(self.recording[row]), int(self.start[row]), num_samples)

    def _batches_of_windows(self, rows: np.ndarray, labels: LabelsOf, model: Any, protocol: Any) -> Iterator[Batch]:
        rng = np.random.default_rng(protocol.seed)
        num_latents = model.encoder.num_latents(self.window_samples)
        for _ in itertools.count():
            chosen = rng.choice(rows, protocol.batch_size)
            x = np.full((len(chosen), self.window_samples, *self.corpus.signals.shape), np.nan, np.float32)
            num_valid = np.zeros(len(chosen), np.int64)
            for number, row in enumerate(chosen.tolist()):
                window = self.read_window(row)
                x[number, : len(window)], num_valid[number] = window, len(window)
            codes = np.stack([labels(row, None, 0, num_latents) for row in chosen.tolist()])
            unknown = torch.full((len(chosen),), -1)
            yield Batch(torch.from_numpy(x), torch.from_numpy(num_valid), unknown, unknown, torch.from_numpy(codes))
