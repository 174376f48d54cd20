"""Probe data of audio: labels (phones, speakers, columns), MFCC and log-mel spectra, and features of files."""

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cpc.data.audio.alignments import read_matching_alignments, window_labels
from cpc.data.audio.headers import AUDIO_SUFFIXES
from cpc.data.audio.pack import read_blocks
from cpc.data.features import Features, RecordingFeatures
from cpc.data.probe_data import Labels
from cpc.data.recordings.corpus import RecordingCorpus
from cpc.data.recordings.probe_data import RecordingProbeData
from cpc.data.recordings.windows import NUM_INITIALISATION_WINDOWS
from cpc.data.store.atomic import json_text
from cpc.data.store.folders import find_files


class AudioProbeData(RecordingProbeData):
    """Features of a corpus of audio files. Tasks are `phones`, `speaker`, and every other column of the manifest.

    Phones and speakers are read from frames (as in van den Oord et al. 2018), other columns from means over a file.
    Speakers are tested on split `valid`, because the speakers of the test split are not in the training split.
    """

    unit = "file"
    hand_made = ("mfcc", "logmel")
    default_features = ("c", "z", "mfcc")
    default_baselines = ("majority", "random", "supervised")

    def __init__(
        self,
        corpus: RecordingCorpus | None,
        alignments: str | Path | None = None,
        tier: str | None = None,
        **where: Any,
    ) -> None:
        super().__init__(corpus, **where)
        self._alignments, self._tier = alignments, tier

    @property
    def splits(self) -> Sequence[str]:
        """The split column of the manifest."""
        manifest = self.corpus.table
        return manifest.splits if self.train_split is None else manifest.column("split")

    def labels(self, task: str, rows: np.ndarray) -> Labels:
        """Return the segments of the alignments for `phones`, else a column of the manifest."""
        if task == "path":
            raise ValueError("`task` path cannot be probed, since every file has a different path: name another column")
        manifest = self.corpus.table
        if task != "phones":
            values = manifest.column(task)
            return Labels({row: values[row] for row in rows.tolist() if values[row]})
        alignments = read_matching_alignments(manifest, rows, self._alignments, self._tier, "task 'phones'")
        paths = {row: manifest.paths[row] for row in rows.tolist()}
        segments = {row: alignments.segments(path) for row, path in paths.items() if path in alignments}

        def codes(row: int, code_of: Mapping[str, int], times: Any, start: int, num_vectors: int) -> np.ndarray:
            return window_labels(segments[row], times, start, num_vectors, code_of)

        found = {row: {segment.label for segment in row_segments} for row, row_segments in segments.items()}
        return Labels({row: names for row, names in found.items() if names}, codes_of=codes)

    def feature_extractor(self, features: Sequence[str], model: Any = None) -> RecordingFeatures:
        """Return an extractor of a model's `c` and `z`, or of spectra standardised by the training split."""
        samples = None if self.corpus is None else self.corpus.samples
        where: dict[str, Any] = {"device": self.device, "precision": self.precision}
        if model is None:
            where["sample_rate_hz"] = self.corpus.samples.sample_rate_hz
            where["statistics"] = self.corpus.statistics(self.train_split)
        times = Features("zc" if len(features) == 2 else features[0], model, **where)  # type: ignore[arg-type]
        return RecordingFeatures(features, times, samples, partial(read_blocks, sample_rate_hz=times.sample_rate_hz))

    def find_files(self, folder: Path) -> list[str]:  # noqa: D102
        return find_files(folder, AUDIO_SUFFIXES, "audio")

    def default_test_split(self, task: str) -> str:  # noqa: D102
        return "valid" if task == "speaker" else "test"

    def default_pool(self, task: str) -> str:  # noqa: D102
        return "frames" if task in ("phones", "speaker") else "mean"

    def untrained_names(self, learnt: Sequence[str]) -> Sequence[str]:
        """Return only the first feature, since a pass over a corpus takes long."""
        return learnt[:1] or ("c",)

    def record(self) -> dict[str, Any]:
        """Return facts about the manifest, and about the windows that initialise untrained models."""
        manifest = self.corpus.table
        return {
            "manifest": str(manifest.root),
            "sha256": hashlib.sha256(json_text(manifest.columns).encode()).hexdigest(),
            "num_skipped": len(self.corpus.samples.skipped),
            "initialisation": {
                "window_samples": self.corpus.window_samples,
                "num_windows": NUM_INITIALISATION_WINDOWS,
                "from": f"split {self.train_split!r}, without padding",
            },
        }
