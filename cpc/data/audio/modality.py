"""Audio as a modality: manifest -> packed cache -> windows."""

from dataclasses import dataclass, fields
from typing import Any, ClassVar

from jaxtyping import Float
from torch import Tensor

from cpc.config.argument_rules import Count, Positive
from cpc.data.audio.augmentation import WaveformAugmentation
from cpc.data.audio.corpus import Corpus, Sampler
from cpc.data.audio.probe_data import AudioProbeData
from cpc.data.audio.windows import NUM_INITIALISATION_WINDOWS, initialisation_windows
from cpc.data.map_style import MapStyleModality


@dataclass(kw_only=True)
class Audio(MapStyleModality):
    """Windows of audio files.

    Args:
        manifest: a manifest CSV, a folder that holds `manifest.csv` (see `cpc data index`), or the folder or URL of a
            sharded corpus (see `cpc data shard`).
        window_samples: length of a window at the encoder's sample rate.
        batch_size: windows per batch and device.
        sampler: `uniform` over all windows, or `same_speaker`, batches of `speakers_per_batch` speakers.
        speakers_per_batch: speakers in the batch of all devices together, for `same_speaker`.
        train_split: value of the manifest's split column to train on.
        eval_split: held-out split, on which the bound is measured.
        eval_batches: number of batches per device in a held-out evaluation; at most one pass. Every evaluation has the
            same batches.
        num_workers: loader processes; 0 loads in the training process, which is fast enough for packed audio.
        cache_dir: folder for decoded audio (115 MB per hour at 16 kHz); null: beside the manifest.
        cache_gb: largest size of the shards of a URL on disk, in 1e9 bytes. The shards are in `cache_dir`, by default
            in `~/.cache/cpc/shards`.
        shuffle_hours: hours of audio that are shuffled together, for shards of a URL that exceed `cache_gb`; an hour at
            16 kHz takes 0.115 GB. Null: the whole split.
        skip_bad: leave out files that cannot be used, and print how many.
        alignments: file or folder of alignments. Probes of `phones` learn their labels. If not given, `cpc probe` looks
            beside the manifest.
        tier: tier of TextGrids whose labels are read; `phones`, or the only interval tier if not given.
        augmentation: changes of training windows (`WaveformAugmentation`); null: none.
        seed: seed of the batches and of all augmentation.
    """

    name = "audio"
    unit = "windows"
    source_option = "manifest"
    size_option = "window_samples"
    local_options: ClassVar[tuple[str, ...]] = (*MapStyleModality.local_options, "alignments", "tier", "cache_gb")
    held_out_options: ClassVar[tuple[str, ...]] = ("batch_size", "window_samples", "sampler", "speakers_per_batch")
    probe_options: ClassVar[tuple[str, ...]] = ("alignments", "tier")

    manifest: str
    window_samples: Count = 20480
    sampler: Sampler = "uniform"
    speakers_per_batch: Count = 1
    alignments: str | None = None
    tier: str | None = None
    cache_gb: Positive = 50.0
    shuffle_hours: Positive | None = None
    augmentation: WaveformAugmentation | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shuffle_hours is not None and self.sampler != "uniform":
            raise ValueError(
                f"`shuffle_hours`={self.shuffle_hours} needs `sampler`=uniform, since same_speaker draws from "
                "the whole corpus: leave `shuffle_hours` out"
            )

    def check(self, model: Any) -> None:
        """Also raise an error if windows are too short for the model's predictions."""
        super().check(model)
        num_latents, furthest = model.encoder.num_latents(self.window_samples), model.steps[-1].k
        if num_latents <= furthest:
            raise ValueError(
                f"a window of `window_samples`={self.window_samples} gives {num_latents} latents, but the model "
                f"predicts {furthest} steps ahead: lengthen the window or lower `predictor.num_steps` "
                "(or the last of `predictor.steps`) or `loss.skip_steps`"
            )
        if self.augmentation is not None:
            self.augmentation.check(model.encoder.sample_rate_hz, self.window_samples)

    def open(self, encoder: Any, *, to_train: bool = False) -> Corpus:
        """Return the corpus at the encoder's sample rate."""
        if to_train and self.tier is not None and self.alignments is None:
            raise ValueError(f"`tier`={self.tier} needs the TextGrids of `alignments`: name these too")
        options = {field.name: getattr(self, field.name) for field in fields(Corpus) if hasattr(self, field.name)}
        return Corpus(self.manifest, encoder, **options)

    def class_names(self, corpus: Corpus, task: str) -> list[str]:
        """Return the classes of `phones` from the alignments, or of `speaker` from the manifest."""
        if task == "phones":
            if not corpus.labels:
                raise ValueError(
                    "an online probe of phones needs frame labels: give `alignments`, or leave the probe out with "
                    "--trainer.callbacks null"
                )
            return corpus.labels
        if task != "speaker":
            raise ValueError(f"an online probe of audio has the task 'speaker' or 'phones', not {task!r}")
        if not corpus.speakers:
            raise ValueError(
                "an online probe of speakers needs a 'speaker' column in the manifest: add one, or leave the probe out "
                "with --trainer.callbacks null"
            )
        return corpus.speakers

    def initialisation_batch(self, corpus: Any) -> Float[Tensor, "B S"]:
        """Return windows of the training split without padding."""
        audio = corpus.windows(self.train_split).audio
        return initialisation_windows(audio, self.window_samples, NUM_INITIALISATION_WINDOWS, self.seed)

    def probe_data(self, encoder: Any, corpus: Any, **where: Any) -> AudioProbeData:  # noqa: D102
        return AudioProbeData(corpus, self.alignments, self.tier, **where)
