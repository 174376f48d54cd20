"""Probe data of signals: labels and features of windows or of whole recordings. T latents, C channels."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cpc.config.argument_rules import Choices
from cpc.data.batch import Batch
from cpc.data.probe_data import UNLABELLED, FeatureExtractor, Labels, LabelsOf
from cpc.data.recordings.corpus import RecordingCorpus
from cpc.data.recordings.probe_data import RecordingProbeData
from cpc.data.signals.features import HandMadeFeatures, SignalFeatures, WindowFeatures
from cpc.data.signals.folder import find_recordings


class SignalProbeData(RecordingProbeData):
    """Features of recordings, or of windows every `hop_seconds`, with the labels of the source.

    The label of a window is its only label; a window with several labels, or unlabelled samples, has none. Features `c`
    and `z` of windows are encoded by themselves, `c_stream` and `z_stream` within the recording, so they also know its
    past, and what follows if the context reads ahead.
    """

    source_unit = "recording"
    hand_made = ("hand", "hand_past")

    def __init__(
        self,
        corpus: RecordingCorpus | None,
        window_seconds: float,
        hop_seconds: float | None,
        channels: Sequence[str | int] | None = None,
        **where: Any,
    ) -> None:
        super().__init__(corpus, **where)
        self.channels = channels
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
        self.window_samples = max(1, round(window_seconds * rate))
        if hop_seconds is None:
            self.start, self.rows_per_window = np.zeros(len(self.recording), np.int64), 1
        else:
            hop = max(1, round(hop_seconds * rate))
            self.rows_per_window = -(-self.window_samples // hop)  # windows that start before a window has ended
            lasts = np.maximum(corpus.samples.num_samples - self.window_samples, 0)
            starts = [np.arange(0, last + 1, hop) for last in lasts.tolist()]
            self.recording = np.repeat(self.recording, list(map(len, starts)))
            self.start = np.concatenate(starts)

    def labels(self, task: str, rows: np.ndarray) -> Labels:
        """Return the labels of the source for a task, or the subjects for `group`."""
        table = self.corpus.table
        if task == "group":
            groups = [table.groups[recording] for recording in self.recording.tolist()]
            return Labels({row: groups[row] for row in rows.tolist() if groups[row]})
        Choices(("group", *table.labels)).check("`task`", task)
        labels = self.corpus.labels(task)
        lengths = self.num_samples(rows).tolist()
        found = {
            row: np.unique(labels.codes(int(self.recording[row]), int(self.start[row]), length)).tolist()
            for row, length in zip(rows.tolist(), lengths, strict=True)
        }
        if self.is_windowed or not labels.vary_within:
            only = {row: codes[0] for row, codes in found.items() if len(codes) == 1 and codes[0] >= 0}
            return Labels({row: labels.classes[code] for row, code in only.items()}, order=labels.classes)

        def codes_of(row: int, code_of: Mapping[str, int], times: Any, start: int, num_vectors: int) -> np.ndarray:
            table = np.array([code_of.get(name, UNLABELLED) for name in labels.classes] + [UNLABELLED])
            return table[self.corpus.latent_codes(task, row, start, num_vectors)]

        names = {row: {labels.classes[code] for code in codes if code >= 0} for row, codes in found.items()}
        return Labels({row: each for row, each in names.items() if each}, labels.classes, codes_of)

    def feature_extractor(self, features: Sequence[str], model: Any = None) -> FeatureExtractor:
        """Return an extractor of a model's features, or of hand-made features of windows."""
        if model is None:
            (name,) = features
            return HandMadeFeatures(name, self)
        return (WindowFeatures if self.is_windowed else SignalFeatures)(features, model, self)

    def find_files(self, folder: Path) -> list[str]:  # noqa: D102
        return find_recordings(folder, [".npz"])

    def name(self, row: int) -> str:
        """Return the name of the recording, and the time of the window."""
        seconds = self.start[row] / self.corpus.encoder.sample_rate_hz
        return f"{super().name(row)} from {seconds:g} s" if self.is_windowed else super().name(row)

    def default_folds(self, task: str, num_folds: int | None) -> tuple[str | None, int | None]:
        """Return folds over the subjects, if the source has no split `test` and all subjects are known."""
        has_groups = task != "group" and all(self.corpus.table.groups)
        if "test" in self.corpus.table.splits or not has_groups:
            return None, num_folds
        return "group", num_folds or min(5, len(self.corpus.speakers))

    def default_pool(self, task: str) -> str:
        """Return `frames` for labels that vary within recordings, otherwise `mean_std`."""
        table = self.corpus.table
        varies = task in table.labels and table.labels[task].vary_within
        return "frames" if varies and not self.is_windowed else "mean_std"

    def num_samples(self, rows: np.ndarray) -> np.ndarray:  # noqa: D102
        lengths = super().num_samples(rows)
        return np.minimum(lengths, self.window_samples) if self.is_windowed else lengths

    def untrained_names(self, learnt: Sequence[str]) -> Sequence[str]:
        """Return all probed features of the model: a random network is a strong baseline on signals."""
        return learnt or ("c",)

    def batches(self, rows: np.ndarray, labels: LabelsOf, model: Any, protocol: Any) -> Iterator[Batch]:
        """Yield batches of windows; windows of `hop_seconds` as they are, else cut from recordings at random."""
        if self.is_windowed:
            return self._batches_of_windows(rows, labels, model, protocol)
        return super().batches(rows, labels, model, protocol)

    def record(self) -> dict[str, Any]:
        """Return facts about the source."""
        table = self.corpus.table
        windows = {"window_samples": self.window_samples} if self.is_windowed else {}
        return {
            "source": str(table.source),
            "num_recordings": len(table.names),
            "channels": list(table.channels),
            "sample_rate_hz": table.sample_rate_hz,
            **windows,
        }

    def read_window(self, row: int) -> np.ndarray:
        """Return the samples `[S, C]` of a window, or of a whole recording."""
        num_samples = self.window_samples if self.is_windowed else None
        return self.corpus.samples.read(int(self.recording[row]), int(self.start[row]), num_samples)

    def _batches_of_windows(self, rows: np.ndarray, labels: LabelsOf, model: Any, protocol: Any) -> Iterator[Batch]:
        rng = np.random.default_rng(protocol.seed)
        augmenter = self.corpus.training_augmenter if protocol.augment else None
        num_latents = model.encoder.num_latents(self.window_samples)
        for _ in itertools.count():
            chosen = rng.choice(rows, protocol.batch_size)
            x = np.full((len(chosen), self.window_samples, *self.corpus.samples.shape), np.nan, np.float32)
            num_valid = np.zeros(len(chosen), np.int64)
            for number, row in enumerate(chosen.tolist()):
                window = self.read_window(row)
                if augmenter is not None:
                    window = augmenter(window, int(rng.integers(2**40)))
                x[number, : len(window)], num_valid[number] = window, len(window)
            codes = np.stack([labels(row, None, 0, num_latents) for row in chosen.tolist()])
            unknown = torch.full((len(chosen),), -1)
            yield Batch(torch.from_numpy(x), torch.from_numpy(num_valid), unknown, unknown, torch.from_numpy(codes))
