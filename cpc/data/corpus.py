"""A corpus as training and evaluation use it: a manifest's audio, speakers and frame labels, cut by split."""

from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch

from cpc.data.alignments import frame_labels, read_alignments
from cpc.data.audio import AudioFiles
from cpc.data.batches import SameSpeakerBatches, UniformBatches
from cpc.data.manifest import Manifest, read_manifest
from cpc.data.pack import PackedAudio, pack
from cpc.data.windows import FrameLabels, WindowDataset

Sampler = Literal["uniform", "same_speaker"]


@runtime_checkable
class Geometry(Protocol):
    """What an encoder says about where its latents lie."""

    sample_rate_hz: int
    hop_samples: int
    first_centre_samples: float

    def num_latents(self, num_samples: int) -> int:
        """Latents of so many samples."""
        ...


class Corpus:
    """The files of a manifest at an encoder's sample rate.

    Args:
        manifest: a manifest CSV, or a folder that holds `manifest.csv`.
        geometry: the encoder whose latents the windows give.
        window_samples: length of a window.
        packed: read from an int16 memory map, made at the first use; false decodes windows on the fly.
        cache_dir: where the map goes; None: beside the manifest.
        skip_bad: go on without files that cannot be used, and say how many.
        alignments: file or folder of alignments; their labels then come with every window.

    Attributes:
        manifest: all rows.
        speakers: names by group id; empty without a speaker column.
        labels: classes of the alignments, by label id; empty without alignments.
    """

    def __init__(
        self,
        manifest: str | Path,
        geometry: Geometry,
        window_samples: int,
        *,
        packed: bool = True,
        cache_dir: str | Path | None = None,
        skip_bad: bool = False,
        alignments: str | Path | None = None,
    ) -> None:
        self.manifest: Manifest = read_manifest(manifest)
        self.geometry = geometry
        self.window_samples = window_samples
        self.audio: PackedAudio | AudioFiles
        if packed:
            self.audio = pack(self.manifest, geometry.sample_rate_hz, cache_dir, skip_bad=skip_bad)
        else:
            self.audio = AudioFiles.from_manifest(self.manifest, geometry.sample_rate_hz)
        self.group_ids = np.full(len(self.manifest), -1)
        self.speakers: list[str] = []
        if "speaker" in self.manifest.columns:
            self.group_ids, self.speakers = self.manifest.codes("speaker")
        self._alignments = None if alignments is None else read_alignments(alignments)
        self.labels = [] if self._alignments is None else self._alignments.labels

    def rows(self, split: str | None) -> np.ndarray:
        """Rows of a split; None: all."""
        if split is None:
            return np.arange(len(self.manifest))
        self.manifest.select(split)  # its error lists the splits there are
        return np.flatnonzero(np.array(self.manifest.column("split")) == split)

    def windows(self, split: str | None) -> WindowDataset:
        """The windows of a split; sequence ids are the manifest's rows."""
        rows = self.rows(split)
        return WindowDataset(
            self.audio.subset(rows),
            self.window_samples,
            sequence_ids=rows,
            group_ids=self.group_ids[rows],
            labels=self._frame_labels(rows),
            num_latents=self.geometry.num_latents(self.window_samples),
        )

    def batches(
        self,
        windows: WindowDataset,
        sampler: Sampler,
        batch_size: int,
        num_batches: int,
        seed: int,
        *,
        speakers_per_batch: int = 1,
        require_distinct_files: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> UniformBatches | SameSpeakerBatches:
        """Batches of windows: uniform, or of few speakers each."""
        arguments = (windows.audio.num_samples, self.window_samples, batch_size, num_batches, seed)
        if sampler == "uniform":
            return UniformBatches(*arguments, rank=rank, world_size=world_size)
        if sampler != "same_speaker":
            raise ValueError(f"sampler={sampler!r} is not one of 'uniform', 'same_speaker'")
        return SameSpeakerBatches(
            *arguments,
            group_ids=windows.group_ids,
            speakers_per_batch=speakers_per_batch,
            require_distinct_files=require_distinct_files,
            group_names=self.speakers,
            rank=rank,
            world_size=world_size,
        )

    def statistics(self) -> tuple[float, float]:
        """Mean and deviation of the training samples; of 1000 windows where nothing is packed."""
        if isinstance(self.audio, PackedAudio):
            return self.audio.statistics
        has_train = "train" in self.manifest.columns.get("split", [])
        windows = self.windows("train" if has_train else None)
        batch = next(iter(UniformBatches(windows.audio.num_samples, self.window_samples, 1000, 1, seed=0)))
        x, num_valid, *_ = windows.__getitems__(batch)
        signal = x[torch.arange(self.window_samples) < num_valid[:, None]].double()
        return signal.mean().item(), signal.std().item()

    def _frame_labels(self, rows: np.ndarray) -> FrameLabels | None:
        if self._alignments is None:
            return None
        alignments, geometry = self._alignments, self.geometry
        classes = {label: i for i, label in enumerate(self.labels)}
        paths = [self.manifest.paths[row] for row in rows]

        def labels(file: int, start: int, num_latents: int) -> np.ndarray:
            if paths[file] not in alignments:
                return np.full(num_latents, -100)
            rate = geometry.sample_rate_hz
            first_centre_seconds = (start + geometry.first_centre_samples) / rate
            segments = alignments.segments(paths[file])
            return frame_labels(segments, num_latents, geometry.hop_samples / rate, first_centre_seconds, classes)

        return labels
