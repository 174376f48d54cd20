"""Audio for training: manifest -> packed cache -> windows -> batches that resume exactly."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from cpc.data.audio.corpus import Corpus, Geometry, Sampler
from cpc.data.audio.windows import NUM_INITIALISATION_WINDOWS, WindowDataset, initialisation_windows
from cpc.data.streams.stream import Draw
from cpc.evaluation import AudioProtocol
from cpc.model import CPC
from cpc.pretraining.window_data import WindowData


class AudioData(WindowData):
    """Windows of audio files; its arguments are the `data` section of a config.

    Args:
        manifest: a manifest CSV, or a folder that holds `manifest.csv` (see `cpc data index`).
        window_samples: length of a window at the encoder's sample rate.
        batch_size: windows per batch and device.
        sampler: `uniform` over all windows, or `same_speaker`, batches of `speakers_per_batch` speakers.
        speakers_per_batch: for `same_speaker`.
        train_split: value of the manifest's split column to train on.
        eval_split: the held-out part for the bound, another one.
        eval_batches: batches of one held-out evaluation and device, the same ones every time; one pass at most.
        num_workers: loader processes; 0 loads in the training process, enough with the packed cache.
        packed: decode everything once into an int16 memory map; false decodes windows on the fly.
        cache_dir: where the packed audio goes; null: beside the manifest.
        skip_bad: go on without files that cannot be used, and say how many.
        alignments: file or folder of alignments whose labels the online probe learns.
        seed: of the batches.
    """

    modality = "audio"
    unit = "windows"
    size_option = "data.window_samples"

    def __init__(
        self,
        manifest: str,
        window_samples: int = 20480,
        batch_size: int = 8,
        sampler: Sampler = "uniform",
        speakers_per_batch: int = 1,
        train_split: str = "train",
        eval_split: str = "valid",
        eval_batches: int = 16,
        num_workers: int = 0,
        packed: bool = True,
        cache_dir: str | None = None,
        skip_bad: bool = False,
        alignments: str | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(batch_size, train_split, eval_split, eval_batches, num_workers, seed)
        if window_samples < 1:
            raise ValueError(f"data.window_samples={window_samples} must be at least 1")
        self.manifest = manifest
        self.window_samples = window_samples
        self.sampler: Sampler = sampler
        self.speakers_per_batch = speakers_per_batch
        self.packed = packed
        self.cache_dir = cache_dir
        self.skip_bad = skip_bad
        self.alignments = alignments

    @property
    def source(self) -> str:
        """The manifest."""
        return self.manifest

    @property
    def protocol(self) -> AudioProtocol:
        """Held-out windows are drawn as training's are."""
        return AudioProtocol(
            split=self.eval_split,
            batch_size=self.batch_size,
            sampler=self.sampler,
            speakers_per_batch=self.speakers_per_batch,
            window_samples=self.window_samples,
        )

    def class_names(self, task: str) -> list[str]:
        """The classes of an online probe: `phones` or `speaker`.

        Raises:
            ValueError: on another task, or naming the option, if the data have none.
        """
        if task == "phones":
            if not self.corpus.labels:
                raise ValueError(
                    "an online probe of phones needs frame labels: give data.alignments, or leave the probe out with "
                    "--trainer.callbacks null"
                )
            return self.corpus.labels
        if task != "speaker":
            raise ValueError(f"an online probe of audio has the task 'speaker' or 'phones', not {task!r}")
        if not self.corpus.speakers:
            raise ValueError(
                "an online probe of speakers needs a 'speaker' column in the manifest: add one, or leave the probe out "
                "with --trainer.callbacks null"
            )
        return self.corpus.speakers

    def initialisation_batch(self) -> Float[Tensor, "B S"]:
        """Windows without padding."""
        return initialisation_windows(self._train.audio, self.window_samples, NUM_INITIALISATION_WINDOWS, self.seed)

    def _open(self, encoder: Geometry) -> Corpus:
        return Corpus(
            self.manifest,
            encoder,
            self.window_samples,
            packed=self.packed,
            cache_dir=self.cache_dir,
            skip_bad=self.skip_bad,
            alignments=self.alignments,
        )

    def _check_length(self, model: CPC) -> None:
        num_latents, furthest = model.encoder.num_latents(self.window_samples), model.steps[-1].k
        if num_latents <= furthest:
            raise ValueError(
                f"a window of data.window_samples={self.window_samples} gives {num_latents} latents, but the model "
                f"predicts {furthest} steps ahead: lengthen the window or lower model.predictor.init_args.num_steps"
            )

    def _size(self, encoder: Any) -> tuple[int, int, int]:
        return self.window_samples, 1, encoder.num_latents(self.window_samples)

    def _identities(
        self, encoder: Any, windows: WindowDataset, drawn: list[Draw]
    ) -> tuple[Int[Tensor, " B"], Int[Tensor, " B"], Int[Tensor, " B"]]:
        files = [file for file, _ in drawn]
        num_valid = np.minimum(windows.audio.num_samples[files], self.window_samples)
        return (
            encoder.num_latents(torch.from_numpy(num_valid)),
            torch.from_numpy(windows.sequence_ids[files]),
            torch.from_numpy(windows.group_ids[files]),
        )
