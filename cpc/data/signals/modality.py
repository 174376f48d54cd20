"""Signals as a modality: recordings of sensors -> packed cache -> windows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np

from cpc.config.argument_rules import Count, Positive, Share
from cpc.data.map_style import MapStyleModality
from cpc.data.recordings.corpus import RecordingCorpus
from cpc.data.recordings.windows import NUM_INITIALISATION_WINDOWS, FrameLabels, PackedRecordings
from cpc.data.signals.augmentation import SignalAugmentation
from cpc.data.signals.channels import is_nameless
from cpc.data.signals.pack import open_sharded_signals, pack_signals
from cpc.data.signals.probe_data import SignalProbeData
from cpc.data.signals.recordings import Recordings, read_recordings
from cpc.data.store.contents import say, say_contents
from cpc.data.store.shards import Shards, is_sharded


@dataclass(kw_only=True)
class Signals(MapStyleModality):
    """Windows of recordings of sensors, `[samples, channels]`.

    Args:
        source: an npz or npy file, or a folder of recordings with or without a manifest;
            `cpc.data.signals.recordings.read_recordings` describes the layouts. Or the folder or URL of shards (`cpc
            data shard`).
        sample_rate_hz: samples per second; needed where the source does not say.
        channels: names or numbers of the channels to read; null: all. A model reads its channels by their names.
        window_seconds: length of a window. Windows and predictions lie in one recording.
        hop_seconds: distance of the windows that `cpc probe` labels and reads; null: it reads whole recordings.
        missing: `refuse` NaN with file, channel and time, or `mask` them: such samples are zero after standardisation.
            A latent without a known sample in its hop is neither target nor negative, and predicts nothing.
        labels: labels that come with every window, for an online probe; null: none.
        augmentation: rotations of training windows (`SignalAugmentation`); null: none.
        sampler: `uniform` over all windows, or `same_speaker`, batches of `speakers_per_batch` subjects.
        speakers_per_batch: subjects in the batch of all devices together, for `same_speaker`.
        valid_share: share of the subjects that becomes split `valid` if the source has no splits.
        test_share: share of the subjects that becomes split `test` if the source has no splits.
        cache_dir: folder for packed signals; null: beside the source, or ~/.cache/cpc/shards for the shards of a URL.
        cache_gb: largest size of the shards of a URL on disk, in 1e9 bytes. Batches draw from all shards, so all should
            fit.
    """

    name = "signals"
    unit = "windows"
    is_whole = True
    size_option = "window_seconds"
    held_out_options: ClassVar[tuple[str, ...]] = (
        "batch_size",
        "window_seconds",
        "sampler",
        "speakers_per_batch",
        "channels",
        "valid_share",
        "test_share",
    )
    probe_options: ClassVar[tuple[str, ...]] = ("window_seconds", "hop_seconds")
    online_labels: ClassVar[str] = "a column `group`, set `labels` to the task"
    num_initialisation: ClassVar[int] = NUM_INITIALISATION_WINDOWS

    source: str
    sample_rate_hz: Positive | None = None
    channels: Sequence[str | int] | None = None
    window_seconds: Positive = 10.0
    hop_seconds: Positive | None = None
    missing: Literal["refuse", "mask"] = "refuse"
    labels: str | None = None
    augmentation: SignalAugmentation | None = None
    sampler: Literal["uniform", "same_speaker"] = "uniform"
    speakers_per_batch: Count = 1
    batch_size: Count = 32
    valid_share: Share = 0.1
    test_share: Share = 0.0
    cache_gb: Positive = 50.0

    def check(self, model: Any) -> None:
        """Refuse also windows that are too short for the predictions.

        Warn if the first predicted latents share samples with the latest latent that a context has seen.
        """
        super().check(model)
        encoder = model.encoder
        num_latents = encoder.num_latents(self.window_samples(encoder))
        self.check_reach(model, num_latents, f"`window_seconds`={self.window_seconds} gives {num_latents} latents")
        if self.augmentation is not None:
            self.augmentation.check(encoder.channels)
        self.warn_of_overlap(model, getattr(encoder, "overlapping_steps", 0), "latents", "samples")

    def check_encoder(self, encoder: Any) -> None:
        """Refuse also an encoder of another rate, or without a mask of known latents, if the options need one."""
        super().check_encoder(encoder)
        if self.missing == "mask" and not hasattr(encoder, "known_latents"):
            lacks = f"{type(encoder).__name__} has no method known_latents as cpc.encoders.SignalEncoder has"
            raise ValueError(f"`missing`=mask needs an encoder that says which latents are known: {lacks}")
        if self.sample_rate_hz not in (None, encoder.sample_rate_hz):
            rates = f"`sample_rate_hz`={self.sample_rate_hz:g}, but `encoder.sample_rate_hz`={encoder.sample_rate_hz:g}"
            raise ValueError(f"{rates}: set both to the rate of the recordings")

    def window_samples(self, encoder: Any) -> int:
        """Return the length of a window at the encoder's rate; at least one sample."""
        return max(1, round(self.window_seconds * encoder.sample_rate_hz))

    def open(self, encoder: Any, *, is_training: bool = False) -> RecordingCorpus:
        """Open the source, whose channels and rate must be those of the encoder.

        Channels are read by the names that the encoder has, and converted to its units. With `is_training` an encoder
        without names or units gets those of the source. Without it, a source that says no rate has that of the encoder.
        """
        options: dict[str, Any] = {"missing": self.missing}
        packed = None
        if is_sharded(self.source):
            shards = Shards(self.source, self.cache_dir, self.cache_gb)
            opened = open_sharded_signals(shards, missing=self.missing, skip_bad=self.skip_bad)
            options["listing"], packed, options["missing"] = opened
        recordings = read_recordings(
            self.source,
            sample_rate_hz=self.sample_rate_hz,
            channels=self.channels,
            valid_share=self.valid_share,
            test_share=self.test_share,
            seed=self.seed,
            model_channels=getattr(encoder, "channel_names", None),
            model_units=getattr(encoder, "units", None),
            model_rate_hz=None if is_training else encoder.sample_rate_hz,
            **options,
        )
        rate, num_channels = recordings.sample_rate_hz, len(recordings.channels)
        if num_channels != encoder.channels:
            found = f"{self.source} has {num_channels} channels ({', '.join(recordings.channels)})"
            raise ValueError(f"{found}, but `encoder.channels`={encoder.channels}: set it, or choose by `channels`")
        if rate != encoder.sample_rate_hz:
            found = f"{self.source} has {rate:g} samples per second"
            raise ValueError(f"{found}, but `encoder.sample_rate_hz`={encoder.sample_rate_hz:g}: set both to one rate")
        groups = {"groups": set(recordings.groups) - {""}} if any(recordings.groups) else {}
        unit = f"recordings of {num_channels} channels at {rate:g} Hz"
        say_contents(recordings.source, unit, recordings.splits, **groups)
        if recordings.conversions:
            say(f"data: {recordings.source}: {recordings.conversions}")
        if is_training and hasattr(encoder, "set_channels"):
            self._name_channels(encoder, recordings)
        if self.labels is not None and self.labels not in recordings.labels:
            known = ", ".join(recordings.labels) or "none"
            raise ValueError(f"`labels`={self.labels!r} is not among the labels of the source: {known}")
        return RecordingCorpus(
            recordings,
            encoder,
            self.window_samples(encoder),
            partial(self._decode, recordings, packed),
            frame_labels=None if self.labels is None else partial(_latent_labels, self.labels),
            augmenter=None if self.augmentation is None else lambda: self.augmentation,
            has_missing=recordings.missing == "mask",
        )

    def _decode(self, recordings: Recordings, packed: PackedRecordings | None) -> PackedRecordings:
        if packed is None:
            return pack_signals(recordings, self.cache_dir, skip_bad=self.skip_bad)
        if recordings.factors is None and list(recordings.columns) == list(range(len(packed.channels))):
            return packed
        return packed.converted(recordings.columns, None if recordings.factors is None else recordings.factors[0])

    def _name_channels(self, encoder: Any, recordings: Recordings) -> None:
        """Give an encoder the names and units that it lacks; `channels` by number become names, as they are saved."""
        names, units = list(recordings.channels), encoder.units or (recordings.units if any(recordings.units) else None)
        is_named = not is_nameless(names) and len(set(names)) == len(names)
        encoder.set_channels(encoder.channel_names or (names if is_named else None), units)
        if is_named and self.channels is not None:
            self.channels = names

    def online_tasks(self, corpus: Any) -> Mapping[str, Sequence[str]]:
        """Return `group`, and the labels that `labels` names."""
        named = {} if self.labels is None else {self.labels: corpus.table.labels[self.labels].classes}
        return {"group": corpus.speakers, **named}

    def probe_data(self, encoder: Any, corpus: Any, **where: Any) -> SignalProbeData:
        """Return the probe data of a corpus, which is prepared: windows and labels depend on exact lengths."""
        if corpus is not None:
            corpus.prepare()
        return SignalProbeData(corpus, self.window_seconds, self.hop_seconds, self.channels, **where)

    def usable(self, corpus: RecordingCorpus, split: str, model: Any) -> RecordingCorpus:
        """Return the corpus without windows in which nothing is predicted; an error if there are no others."""
        num_latents = corpus.num_latents(corpus.rows(split))
        longest, steps = int(num_latents.max()), [step.k for step in model.steps]
        self.check_reach(model, longest, f"split {split!r}: the longest recording gives {longest} latents")
        is_long = num_latents > steps[0]
        if not is_long.all():
            short = f"{(~is_long).sum()} of {len(num_latents)} recordings have fewer than the {steps[0] + 1} latents"
            say(f"data: split {split!r}: {short} of the first prediction: no window is drawn from them")
        corpus = corpus.predicting(steps)
        windows = corpus.windows(split)
        num_starts, num_usable = windows.all_starts[is_long], windows.starts.num[is_long]
        num_excluded, num_empty = int((num_starts - num_usable).sum()), int((num_usable == 0).sum())
        if num_excluded:
            problem = (
                f"split {split!r}: of {int(num_starts.sum())} windows {num_excluded} are left out, because missing "
                f"samples leave no prediction; {num_empty} of {len(num_usable)} recordings gives none"
            )
            if num_empty == len(num_usable):
                raise ValueError(f"{problem}: lengthen `window_seconds`, or fill or cut out missing samples")
            say(f"data: {problem}")
        return corpus


def _latent_labels(task: str, corpus: RecordingCorpus) -> FrameLabels:
    corpus.labels(task)  # raises an error on labels that do not fit

    def labels(row: int, start: int, num_latents: int) -> np.ndarray:
        codes = corpus.latent_codes(task, row, start, num_latents)
        return np.where(codes < 0, -100, codes)

    return labels
