"""Audio as a modality: manifest -> packed cache -> windows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np

from cpc.config.argument_rules import Count, Positive, Range
from cpc.data.audio.alignments import Alignments, check_alignments, read_alignments, window_labels
from cpc.data.audio.augmentation import COLOURS, Augmenter, WaveformAugmentation
from cpc.data.audio.manifest import Manifest, read_manifest
from cpc.data.audio.pack import open_sharded, pack
from cpc.data.audio.probe_data import AudioProbeData
from cpc.data.map_style import MapStyleModality
from cpc.data.recordings.corpus import RecordingCorpus
from cpc.data.recordings.windows import NUM_INITIALISATION_WINDOWS, FrameLabels, PackedRecordings
from cpc.data.store.shards import Shards, is_sharded


@dataclass(kw_only=True)
class Audio(MapStyleModality):
    """Windows of audio files.

    Args:
        manifest: a manifest CSV, a folder that holds `manifest.csv` (see `cpc data index`), or the folder or URL of a
            sharded corpus (see `cpc data shard`).
        window_samples: length of a window at the encoder's sample rate.
        sampler: `uniform` over all windows, or `same_speaker`, batches of `speakers_per_batch` speakers.
        speakers_per_batch: speakers in the batch of all devices together, for `same_speaker`.
        cache_dir: folder for decoded audio (115 MB per hour at 16 kHz); null: beside the manifest.
        cache_gb: largest size of the shards of a URL on disk, in 1e9 bytes. The shards are in `cache_dir`, by default
            in `~/.cache/cpc/shards`.
        shuffle_hours: hours of audio that are shuffled together, for shards of a URL that exceed `cache_gb`; an hour at
            16 kHz takes 0.115 GB. Null: the whole split.
        alignments: file or folder of alignments. Probes of `phones` learn their labels. If not given, `cpc probe` looks
            beside the manifest.
        tier: tier of TextGrids whose labels are read; `phones`, or the only interval tier if not given.
        augmentation: changes of training windows (`WaveformAugmentation`); null: none.
        seed: seed of the batches and of all augmentation.
    """

    name = "audio"
    unit = "windows"
    is_whole = True
    source_option = "manifest"
    size_option = "window_samples"
    local_options: ClassVar[tuple[str, ...]] = (*MapStyleModality.local_options, "alignments", "tier")
    held_out_options: ClassVar[tuple[str, ...]] = ("batch_size", "window_samples", "sampler", "speakers_per_batch")
    probe_options: ClassVar[tuple[str, ...]] = ("alignments", "tier")
    online_labels: ClassVar[str] = "`alignments` for phones or a column 'speaker' of the manifest"
    num_initialisation: ClassVar[int] = NUM_INITIALISATION_WINDOWS

    manifest: str
    window_samples: Count = 20480
    sampler: Literal["uniform", "same_speaker"] = "uniform"
    speakers_per_batch: Count = 1
    alignments: str | None = None
    tier: str | None = None
    cache_gb: Positive = 50.0
    shuffle_hours: Positive | None = None
    augmentation: WaveformAugmentation | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shuffle_hours is not None and self.sampler != "uniform":
            raise ValueError(f"`shuffle_hours`={self.shuffle_hours} needs `sampler`=uniform, but it is {self.sampler}")

    def check(self, model: Any) -> None:
        """Also raise an error if windows are too short for the model's predictions."""
        super().check(model)
        num_latents = model.encoder.num_latents(self.window_samples)
        self.check_reach(model, num_latents, f"`window_samples`={self.window_samples} gives {num_latents} latents")
        if self.augmentation is not None:
            self.augmentation.check(model.encoder.sample_rate_hz, self.window_samples)

    def open(self, encoder: Any, *, is_training: bool = False) -> RecordingCorpus:
        """Return the corpus at the encoder's sample rate."""
        if is_training and self.tier is not None and self.alignments is None:
            raise ValueError(f"`tier`={self.tier} needs the TextGrids of `alignments`: name these too")
        shards = Shards(self.manifest, self.cache_dir, self.cache_gb) if is_sharded(self.manifest) else None
        manifest = read_manifest(self.manifest if shards is None else shards.folder, check_files=shards is None)
        alignments = None if self.alignments is None else read_alignments(self.alignments, tier=self.tier)
        classes = [] if alignments is None else alignments.labels
        return RecordingCorpus(
            manifest,
            encoder,
            self.window_samples,
            partial(self._decode, manifest, shards, encoder.sample_rate_hz),
            nouns=("speaker", "file"),
            files="audio files",
            names_matter=True,  # checkpoints of earlier releases have a digest of them
            check_labels=None if alignments is None else partial(check_alignments, alignments, manifest),
            frame_labels=None if alignments is None else partial(_frame_labels, alignments, classes),
            classes=classes,
            augmenter=None if self.augmentation is None else partial(self._augmenter, encoder.sample_rate_hz),
            windows_at_once=self._windows_at_once(encoder.sample_rate_hz),
            caps_held_out=False,  # bounds of earlier releases come from such batches
        )

    def _decode(self, manifest: Manifest, shards: Shards | None, sample_rate_hz: int) -> PackedRecordings:
        if shards is not None:
            return open_sharded(shards, manifest, sample_rate_hz, self.skip_bad)
        return pack(manifest, sample_rate_hz, self.cache_dir, skip_bad=self.skip_bad)

    def _augmenter(self, sample_rate_hz: int) -> Augmenter:
        options, noise = self.augmentation, None
        assert options is not None
        if options.noise not in COLOURS:
            try:
                noise = self._decode(read_manifest(options.noise), None, sample_rate_hz)
            except ValueError as error:
                raise ValueError(f"`augmentation.noise`={options.noise!r}: {error}") from error
        return Augmenter(options, sample_rate_hz, noise)

    def _windows_at_once(self, sample_rate_hz: int) -> int | None:
        if self.shuffle_hours is None:
            return None
        num_windows = round(self.shuffle_hours * 3600 * sample_rate_hz / self.window_samples)
        Range(16).check(f"`shuffle_hours`={self.shuffle_hours}: the number of its windows", num_windows)
        return num_windows

    def online_tasks(self, corpus: RecordingCorpus) -> Mapping[str, Sequence[str]]:
        """Return `phones`, whose classes are those of the alignments, and `speaker`."""
        return {"speaker": corpus.speakers, "phones": corpus.classes}

    def probe_data(self, encoder: Any, corpus: Any, **where: Any) -> AudioProbeData:  # noqa: D102
        return AudioProbeData(corpus, self.alignments, self.tier, **where)


def _frame_labels(alignments: Alignments, classes: Sequence[str], corpus: RecordingCorpus) -> FrameLabels:
    class_of = {label: i for i, label in enumerate(classes)}
    names, encoder = corpus.table.names, corpus.encoder

    def labels(row: int, start: int, num_latents: int) -> np.ndarray:
        segments = alignments.segments(names[row]) if names[row] in alignments else []
        return window_labels(segments, encoder, start, num_latents, class_of)

    return labels
