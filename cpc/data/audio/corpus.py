"""The audio, speakers and frame labels of a manifest, by split, for training and evaluation."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from cpc.data.audio.alignments import FrameTimes, check_alignments, read_alignments, window_labels
from cpc.data.audio.augmentation import Augmenter, WaveformAugmentation
from cpc.data.audio.file_names import refuse
from cpc.data.audio.manifest import read_manifest
from cpc.data.audio.pack import PackedAudio, open_sharded, pack
from cpc.data.audio.windows import FrameLabels, WindowDataset
from cpc.data.map_style import MapStyleCorpus
from cpc.data.store.fingerprints import Content
from cpc.data.store.shards import Shards, is_sharded
from cpc.data.streams.stream import digest, naming

Sampler = Literal["uniform", "same_speaker"]


@runtime_checkable
class Geometry(FrameTimes, Protocol):
    """The number and the times of an encoder's latents."""

    def num_latents(self, num_samples: int) -> int:
        """Return the number of latents of `num_samples` samples."""
        ...


@dataclass(eq=False)
class Corpus(MapStyleCorpus):
    """The files of a manifest at an encoder's sample rate.

    Audio is decoded by the first call of `windows`; `check` decodes nothing.

    Args:
        source: a manifest CSV, a folder that holds `manifest.csv`, or the URL of a sharded corpus.
        geometry: the encoder.
        others: options of `cpc.data.Audio`. With alignments, every window has frame labels.

    Attributes:
        manifest: all rows.
        group_ids: `[num_rows]` int64, the speaker of each row, or -1 if unknown.
        speakers: names by group id; empty without a speaker column.
        labels: classes of the alignments, by label id; empty without alignments.

    Raises:
        ValueError: if the manifest or the alignments cannot be read.
    """

    source: str | Path
    geometry: Geometry
    window_samples: int
    cache_dir: str | Path | None = None
    cache_gb: float = 50.0
    skip_bad: bool = False
    alignments: str | Path | None = None
    tier: str | None = None
    augmentation: WaveformAugmentation | None = None
    shuffle_hours: float | None = None

    def __post_init__(self) -> None:
        self._shards = Shards(self.source, self.cache_dir, self.cache_gb) if is_sharded(self.source) else None
        source = self.source if self._shards is None else self._shards.folder
        self.manifest = read_manifest(source, check_files=self._shards is None)
        self.group_ids = np.full(len(self.manifest), -1)
        self.speakers: list[str] = []
        if "speaker" in self.manifest.columns:
            self.group_ids, self.speakers = self.manifest.codes("speaker")
        self._alignments = None if self.alignments is None else read_alignments(self.alignments, tier=self.tier)
        self.labels = [] if self._alignments is None else self._alignments.labels

    def check(self, *splits: str | None, needs_speakers: bool = False) -> None:
        """Raise an error on splits without rows, missing speakers, or wrong alignments (see `check_alignments`)."""
        for split in splits:
            rows = self.manifest.rows(split)
            if needs_speakers:
                speakers = self.manifest.column("speaker")
                nameless = [self.manifest.paths[row] for row in rows if not speakers[row]]
                problem = f"of the {len(rows)} files of split {split!r} have no speaker"
                refuse(problem, nameless, "fill the manifest's speaker column")
            if self._alignments is not None:
                try:
                    check_alignments(self._alignments, self.manifest, rows)
                except ValueError as error:
                    raise ValueError(f"alignments of split {split!r}: {error}") from error

    @cached_property
    def audio(self) -> PackedAudio:
        """The audio of all rows. The first use packs it, unless it is packed already or in shards."""
        if self._shards is not None:
            return open_sharded(self._shards, self.manifest, self.geometry.sample_rate_hz, self.skip_bad)
        return pack(self.manifest, self.geometry.sample_rate_hz, self.cache_dir, skip_bad=self.skip_bad)

    @cached_property
    def augmenter(self) -> Augmenter | None:
        """The augmentation of training windows. Recordings of noise are packed on first use, if necessary."""
        options, rate = self.augmentation, self.geometry.sample_rate_hz
        if options is None or options.recordings is None:
            return None if options is None else Augmenter(options, rate)
        try:
            recordings = pack(read_manifest(options.recordings), rate, self.cache_dir, skip_bad=self.skip_bad)
        except ValueError as error:
            raise ValueError(f"`augmentation.noise`={options.noise!r}: {error}") from error
        return Augmenter(options, rate, recordings)

    def windows(self, split: str | None, *, is_training: bool = False) -> WindowDataset:
        """Return the windows of a split (None: of all rows), with augmentation in training. Sequence ids are rows."""
        rows = self.manifest.rows(split)
        windows_at_once = None
        if is_training and self.shuffle_hours is not None:
            windows_at_once = round(self.shuffle_hours * 3600 * self.geometry.sample_rate_hz / self.window_samples)
            if windows_at_once < 16:
                raise ValueError(
                    f"`shuffle_hours`={self.shuffle_hours} holds {windows_at_once} windows, but must hold at least 16"
                )
        made_from = {
            "paths of audio files": digest(self.manifest.paths[row] for row in rows.tolist()),
            "content of audio files": digest(self.audio.content(rows)),
        }
        if is_training and self.augmenter is not None and self.augmenter.recordings is not None:
            noise = self.augmenter.recordings
            made_from["content of noise"] = digest(noise.content(np.arange(len(noise))))
        return WindowDataset(
            self.audio.subset(rows),
            self.window_samples,
            sequence_ids=rows,
            group_ids=self.group_ids[rows],
            labels=self._frame_labels(rows),
            num_latents=self.geometry.num_latents(self.window_samples),
            split=split,
            augmenter=self.augmenter if is_training else None,
            windows_at_once=windows_at_once,
            made_from=made_from,
        )

    def rows(self, split: str | None) -> np.ndarray:
        """Return the rows of the manifest that are in a split; None: all."""
        return self.manifest.rows(split)

    def content(self, rows: np.ndarray) -> Content | None:
        """Return the lengths and exact sums of the samples of these files."""
        return self.audio.content(rows)

    def statistics(self, split: str | None) -> tuple[float, float]:
        """Return the exact mean and standard deviation of the samples of a split; None: of all rows."""
        with naming(split):
            return self.audio.subset(self.manifest.rows(split)).statistics

    def _frame_labels(self, rows: np.ndarray) -> FrameLabels | None:
        if self._alignments is None:
            return None
        alignments, geometry = self._alignments, self.geometry
        classes = {label: i for i, label in enumerate(self.labels)}
        paths = [self.manifest.paths[row] for row in rows]

        def labels(file: int, start: int, num_latents: int) -> np.ndarray:
            segments = alignments.segments(paths[file]) if paths[file] in alignments else []
            return window_labels(segments, geometry, start, num_latents, classes)

        return labels
