"""Probe data of audio: features of whole files, labels (phones, speakers, columns), MFCC and log-mel spectra.

B windows, T frames, C context dim, D feature dim.
"""

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cpc.data.audio.alignments import read_matching_alignments, window_labels
from cpc.data.audio.corpus import Corpus
from cpc.data.audio.files import read_blocks
from cpc.data.audio.headers import AUDIO_SUFFIXES
from cpc.data.audio.windows import NUM_INITIALISATION_WINDOWS, Audio, WindowDataset, initialisation_windows
from cpc.data.batch import Batch
from cpc.data.features import Features
from cpc.data.probe_data import FeatureExtractor, Labels, LabelsOf, ProbeData
from cpc.data.store.atomic import json_text
from cpc.data.store.fingerprints import Content
from cpc.data.store.folders import find_files
from cpc.data.streams.uniform import UniformBatches

MIN_SPEAKER_CLUSTERS = 5
MOST_FILES_TOGETHER = 16
MOST_FRAMES_TOGETHER = 16_000  # frames of a group of files, including padding


class SegmentLabels(Labels):
    """Labels of frames, from the segments of each file."""

    vary_within = True

    def names(self, row: int) -> set[str]:  # noqa: D102
        return {segment.label for segment in self.of_row[row]}

    def codes(self, row: int, code_of: Mapping[str, int], times: Any, start: int, num_vectors: int) -> np.ndarray:
        """Return the class of the segment at the centre of each frame; `UNLABELLED` without a segment."""
        return window_labels(self.of_row[row], times, start, num_vectors, code_of)


class AudioFeatureExtractor(FeatureExtractor):
    """Features of the files of a corpus.

    Args:
        features: names of the features; `c` and `z` together take one pass.
        times: computes the features of one file.
        audio: the files; None if only `file_features` is called.
    """

    def __init__(self, features: Sequence[str], times: Features, audio: Audio | None) -> None:
        self.times = times
        self.audio = audio
        latent_dim = times.latent_dim
        parts = {"z": slice(None, latent_dim), "c": slice(latent_dim, None)}
        self._parts = {name: parts[name] if len(features) > 1 else slice(None) for name in features}
        self.dims = {name: len(range(times.dim)[part]) for name, part in self._parts.items()}

    @property
    def num_workers(self) -> int:
        """All cores if the device is a CPU, since one file per core is faster than one file on all cores."""
        return torch.get_num_threads() if self.times.device.type == "cpu" else 1

    def num_vectors(self, rows: np.ndarray) -> np.ndarray:  # noqa: D102
        assert self.audio is not None
        return self.times.num_frames(self.audio.num_samples[rows])

    def groups(self, rows: np.ndarray) -> list[np.ndarray]:
        """Group files of similar length that fit into memory together. Without a context a group is one file."""
        num_frames = self.num_vectors(rows)
        groups: list[list[int]] = []
        longest = 0
        for file in np.argsort(num_frames, kind="stable")[::-1].tolist():
            size = len(groups[-1]) + 1 if groups else 1
            fits = size <= MOST_FILES_TOGETHER and size * longest <= MOST_FRAMES_TOGETHER
            if groups and self.times.has_context and fits:
                groups[-1].append(int(rows[file]))
            else:
                groups.append([int(rows[file])])
                longest = int(num_frames[file])
        return [np.array(group) for group in groups]

    def read(self, rows: np.ndarray) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """Yield each file and its features. A group of several files is computed at once, a single file in pieces."""
        blocks = [self._blocks(row) for row in rows.tolist()]
        row_frames: Iterator[tuple[int, np.ndarray]]
        if len(rows) == 1:
            row_frames = ((int(rows[0]), frames) for frames in self.times.stream(blocks[0]))
        else:
            row_frames = zip(rows.tolist(), self.times.together(blocks), strict=True)
        for row, frames in row_frames:
            yield row, {name: frames[:, part] for name, part in self._parts.items()}

    def geometry(self, feature: str) -> dict[str, Any]:  # noqa: D102
        return self.times.geometry() | super().geometry(feature)

    def file_features(self, path: Path) -> np.ndarray:  # noqa: D102
        pieces = list(self.times.stream(read_blocks(path, self.times.sample_rate_hz)))
        if not pieces:
            raise ValueError(f"{path}: is too short for a single frame")
        return np.concatenate(pieces)

    def _blocks(self, file: int) -> Iterator[np.ndarray]:
        assert self.audio is not None
        for start in range(0, int(self.audio.num_samples[file]), self.times.chunk_samples):
            yield self.audio.read(file, start, self.times.chunk_samples)


class AudioProbeData(ProbeData):
    """Features of a corpus of audio files. Tasks are `phones`, `speaker`, and every other column of the manifest.

    Phones and speakers are read from frames (as in van den Oord et al. 2018), other columns from means over a file.
    Speakers are tested on split `valid`, because the speakers of the test split are not in the training split.

    Args:
        corpus: the files; None if only files outside a corpus are read.
        alignments: file or folder of alignments with the labels of `phones`; None: the alignments beside the manifest.
        tier: tier of TextGrids, see `read_alignments`.
        where: other arguments of `ProbeData`.
    """

    unit = "file"
    hand_made = ("mfcc", "logmel")
    default_features = ("c", "z", "mfcc")
    default_baselines = ("majority", "random", "supervised")
    several_vectors = True
    # At equal cost many short windows are far better than few long windows, because each gradient sees more speakers.
    supervised: Mapping[str, Any] = {"batch_size": 32, "window_latents": 32}

    def __init__(
        self, corpus: Corpus | None, alignments: str | Path | None = None, tier: str | None = None, **where: Any
    ) -> None:
        super().__init__(**where)
        self._corpus, self._alignments, self._tier = corpus, alignments, tier

    @property
    def corpus(self) -> Corpus:
        """The corpus; every method but `file_features` needs one."""
        assert self._corpus is not None
        return self._corpus

    @property
    def splits(self) -> Sequence[str]:
        """The split column of the manifest."""
        manifest = self.corpus.manifest
        if "split" not in manifest.columns:
            if self.train_split is None:
                return [""] * len(manifest)
            raise ValueError(
                f"a probe needs a training and a test part, but the manifest in {manifest.root} has no column "
                "'split': add one (`cpc data index` with --split_level, or a group 'split' in --speaker_pattern)"
            )
        return manifest.columns["split"]

    def labels(self, task: str, rows: np.ndarray) -> Labels:
        """Return the segments of the alignments for `phones`, else a column of the manifest."""
        if task == "path":
            raise ValueError("`task` path cannot be probed, since every file has a different path: name another column")
        manifest = self.corpus.manifest
        if task != "phones":
            values = manifest.column(task)
            return Labels({row: values[row] for row in rows.tolist() if values[row]})
        alignments = read_matching_alignments(manifest, rows, self._alignments, self._tier, "task 'phones'")
        paths = {row: manifest.paths[row] for row in rows.tolist()}
        segments = {row: alignments.segments(path) for row, path in paths.items() if path in alignments}
        return SegmentLabels({row: row_segments for row, row_segments in segments.items() if row_segments})

    def feature_extractor(self, features: Sequence[str], model: Any = None) -> AudioFeatureExtractor:
        """Return an extractor of a model's `c` and `z`, or of spectra standardised by the training split."""
        audio = None if self._corpus is None else self._corpus.audio
        where: dict[str, Any] = {"device": self.device, "precision": self.precision}
        if model is None:
            where["sample_rate_hz"] = self.corpus.audio.sample_rate_hz
            where["statistics"] = self.corpus.statistics(self.train_split)
        kind: Any = "zc" if len(features) == 2 else features[0]
        return AudioFeatureExtractor(features, Features(kind, model, **where), audio)

    def find_files(self, folder: Path) -> list[str]:  # noqa: D102
        return find_files(folder, AUDIO_SUFFIXES, "audio")

    def name(self, row: int) -> str:  # noqa: D102
        return self.corpus.manifest.paths[row]

    def default_test_split(self, task: str) -> str:  # noqa: D102
        return "valid" if task == "speaker" else "test"

    def default_pool(self, task: str) -> str:  # noqa: D102
        return "frames" if task in ("phones", "speaker") else "mean"

    def clusters(self, task: str, train: np.ndarray, test: np.ndarray) -> tuple[str, np.ndarray]:
        """Return speakers if the test part has at least five and they are not in the training part; else files."""
        ids = self.corpus.group_ids
        tested, trained = set(ids[test].tolist()), set(ids[train].tolist())
        is_independent = -1 not in tested and not tested & trained and len(tested) >= MIN_SPEAKER_CLUSTERS
        return ("speaker", ids) if task != "speaker" and is_independent else ("file", np.arange(len(ids)))

    def groups(self, task: str) -> np.ndarray:
        """Return speakers if all are known and the task is not `speaker`; else files."""
        ids = self.corpus.group_ids
        return np.arange(len(ids)) if task == "speaker" or (ids < 0).any() else ids

    def content(self, rows: np.ndarray) -> Content | None:  # noqa: D102
        return self.corpus.content(rows)

    def minutes(self, rows: np.ndarray) -> np.ndarray:
        """Return the minutes of audio of each file; 0 for a file that was left out."""
        return self.corpus.audio.num_samples[rows] / self.corpus.audio.sample_rate_hz / 60

    def initialise(self, model: Any, seed: int) -> None:
        """Initialise by the statistics of the training split, and by windows of this split without padding."""
        audio = self.corpus.audio.subset(self.corpus.manifest.rows(self.train_split))
        model.encoder.set_statistics(*self.corpus.statistics(self.train_split))
        windows = initialisation_windows(audio, self.corpus.window_samples, NUM_INITIALISATION_WINDOWS, seed)
        model.initialise_from(windows)

    def untrained_names(self, learnt: Sequence[str]) -> Sequence[str]:
        """Return only the first feature, since a pass over a corpus takes long."""
        return learnt[:1] or ("c",)

    def batches(self, rows: np.ndarray, labels: LabelsOf, model: Any, protocol: Any) -> Iterator[Batch]:  # noqa: D102
        audio, encoder = self.corpus.audio.subset(rows), model.encoder
        window_samples = protocol.window_latents * encoder.hop_samples
        dataset = WindowDataset(
            audio,
            window_samples,
            labels=lambda file, start, num_latents: labels(int(rows[file]), encoder, start, num_latents),
            num_latents=int(encoder.num_latents(window_samples)),
        )
        stream = UniformBatches(**dataset.draws, batch_size=protocol.batch_size, seed=protocol.seed)
        return (dataset.__getitems__(stream.batch(step)) for step in itertools.count())

    def record(self) -> dict[str, Any]:
        """Return facts about the manifest, and about the windows that initialise untrained models."""
        manifest, audio = self.corpus.manifest, self.corpus.audio
        return {
            "manifest": str(manifest.root),
            "sha256": hashlib.sha256(json_text(manifest.columns).encode()).hexdigest(),
            "num_skipped": len(getattr(audio, "skipped", ())),
            "initialisation": {
                "window_samples": self.corpus.window_samples,
                "num_windows": NUM_INITIALISATION_WINDOWS,
                "from": f"split {self.train_split!r}, without padding",
            },
        }
