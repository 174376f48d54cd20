"""The LightningDataModule for audio: manifest -> packed cache -> windows -> batches that resume exactly."""

import lightning.pytorch as pl
import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torchdata.stateful_dataloader import StatefulDataLoader

from cpc.data.batches import Window
from cpc.data.corpus import Corpus, Geometry, Sampler
from cpc.data.windows import NUM_INITIALISATION_WINDOWS, WindowDataset, initialisation_windows
from cpc.evaluation import HeldOut, Protocol
from cpc.losses.contrast import check_rows
from cpc.probes.online import OnlineProbe

ENDLESS = 2**62
NUM_CHECKED_BATCHES = 1000  # a quarter of a second


class AudioData(pl.LightningDataModule):
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
        super().__init__()
        counts = {"window_samples": window_samples, "batch_size": batch_size, "eval_batches": eval_batches}
        for name, value in counts.items():
            if value < 1:
                raise ValueError(f"data.{name}={value} must be at least 1")
        if train_split == eval_split:
            raise ValueError(
                f"data.train_split and data.eval_split are both {train_split!r}: a bound on what was trained on can "
                "exceed the truth; hold a part out in the manifest's split column"
            )
        self.manifest = manifest
        self.window_samples = window_samples
        self.batch_size = batch_size
        self.sampler: Sampler = sampler
        self.speakers_per_batch = speakers_per_batch
        self.train_split = train_split
        self.eval_split = eval_split
        self.eval_batches = eval_batches
        self.num_workers = num_workers
        self.packed = packed
        self.cache_dir = cache_dir
        self.skip_bad = skip_bad
        self.alignments = alignments
        self.seed = seed
        self.corpus: Corpus | None = None

    def setup(self, stage: str) -> None:
        """Read the manifest, pack the audio, check that window, model and strategy fit it."""
        if self.corpus is not None:
            return
        module = self.trainer.lightning_module
        encoder = module.model.encoder
        num_latents = encoder.num_latents(self.window_samples)
        num_steps = module.model.predictor.num_steps
        if num_latents <= num_steps:
            raise ValueError(
                f"a window of data.window_samples={self.window_samples} gives {num_latents} latents, but the model "
                f"predicts {num_steps} steps ahead: lengthen the window or lower model.predictor.init_args.num_steps"
            )
        self.corpus = Corpus(
            self.manifest,
            encoder,
            self.window_samples,
            packed=self.packed,
            cache_dir=self.cache_dir,
            skip_bad=self.skip_bad,
            alignments=self.alignments,
        )
        by_speaker = self.sampler == "same_speaker"
        trained = module.model.training_strategies
        self.corpus.check(self.train_split, needs_speakers=by_speaker or _any_same_speaker(trained))
        self.corpus.check(self.eval_split, needs_speakers=by_speaker or _any_same_speaker(module.strategies))
        for probe in self.trainer.callbacks:
            if isinstance(probe, OnlineProbe):
                self.class_names(probe.task)
        self._train = self.corpus.windows(self.train_split)
        self._train_batches = self.corpus.batches(
            self._train,
            self.sampler,
            self.batch_size,
            ENDLESS,
            self.seed,
            speakers_per_batch=self.speakers_per_batch,
            require_distinct_files="same_speaker_excluding" in trained,
            rank=self.trainer.global_rank,
            world_size=self.trainer.world_size,
        )
        self.held_out = HeldOut(
            self.corpus,
            Protocol(self.eval_split, self.window_samples, self.batch_size, self.sampler, self.speakers_per_batch),
            module.model.negatives,
            self.eval_batches,
            rank=self.trainer.global_rank,
            world_size=self.trainer.world_size,
        )
        self._check_identities(encoder, trained, module.strategies)

    def train_dataloader(self) -> StatefulDataLoader:
        """An endless stream of batches, which `trainer.max_steps` cuts: a resumed run takes the next one of it."""
        return StatefulDataLoader(
            self._train,
            batch_sampler=self._train_batches,
            collate_fn=self._train.collate,
            num_workers=self.num_workers,
            generator=torch.Generator().manual_seed(self.seed),  # so that the loader draws nothing from the global one
        )

    def initialisation_windows(self) -> Float[Tensor, "B S"]:
        """Windows for the data-dependent initialisation: the same on every rank."""
        return initialisation_windows(self._train.audio, self.window_samples, NUM_INITIALISATION_WINDOWS, self.seed)

    def class_names(self, task: str) -> list[str]:
        """The classes of an online probe: `phones` or `speaker`.

        Raises:
            ValueError: naming the option, if the data have none.
        """
        assert self.corpus is not None, "set up before probes are"
        if task == "phones":
            if not self.corpus.labels:
                raise ValueError(
                    "an online probe of phones needs frame labels: give data.alignments, or leave the probe out with "
                    "--trainer.callbacks null"
                )
            return self.corpus.labels
        if not self.corpus.speakers:
            raise ValueError(
                "an online probe of speakers needs a 'speaker' column in the manifest: add one, or leave the probe out "
                "with --trainer.callbacks null"
            )
        return self.corpus.speakers

    def _check_identities(self, encoder: Geometry, trained: tuple[str, ...], measured: tuple[str, ...]) -> None:
        """Ask who could be contrasted with whom, without reading audio, of all held-out and the first training batches.

        A strategy that leaves rows without negatives then fails now, not at the first held-out evaluation. Training
        batches must serve the strategies of training alone; those after the first are checked when their turn comes.
        """

        def check(strategy: str, windows: WindowDataset, batch: list[Window]) -> None:
            files = [file for file, _ in batch]
            num_valid = np.minimum(windows.audio.num_samples[files], self.window_samples)
            check_rows(
                strategy,
                encoder.num_latents(torch.from_numpy(num_valid)),
                torch.from_numpy(windows.sequence_ids[files]),
                torch.from_numpy(windows.group_ids[files]),
            )

        for index in range(min(NUM_CHECKED_BATCHES, -(-self._train_batches.windows_per_pass // self.batch_size))):
            for strategy in trained:
                check(strategy, self._train, self._train_batches.batch(index))
        for strategy in measured:
            for batch in self.held_out.batches(strategy):
                check(strategy, self.held_out.windows, batch)


def _any_same_speaker(strategies: tuple[str, ...]) -> bool:
    return any(strategy.startswith("same_speaker") for strategy in strategies)
