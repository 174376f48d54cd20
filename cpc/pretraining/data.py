"""The LightningDataModule for audio: manifest -> packed cache -> windows -> batches that resume exactly."""

import lightning.pytorch as pl
import numpy as np
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from cpc.data.batch import Batch
from cpc.data.batches import SameSpeakerBatches, UniformBatches
from cpc.data.corpus import Corpus, Geometry, Sampler
from cpc.data.windows import WindowDataset
from cpc.losses.contrast import check_rows

NUM_INITIALISATION_WINDOWS = 32
EVALUATION_SEED = 0
ENDLESS = 2**62


class AudioData(pl.LightningDataModule):
    """Windows of audio files; its arguments are the `data` section of a config.

    Args:
        manifest: a manifest CSV, or a folder that holds `manifest.csv` (see `cpc data index`).
        window_samples: length of a window at the encoder's sample rate.
        batch_size: windows per batch and device.
        sampler: `uniform` over all windows, or `same_speaker`, batches of `speakers_per_batch` speakers.
        speakers_per_batch: for `same_speaker`.
        train_split: value of the manifest's split column to train on; null takes every row.
        eval_split: the held-out part for the bound.
        eval_batches: batches of one held-out evaluation and device, the same ones every time.
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
        train_split: str | None = "train",
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
        self._train = self.corpus.windows(self.train_split)
        self._held_out = self.corpus.windows(self.eval_split)
        self._require_distinct_files = "same_speaker_excluding" in module.strategies
        self._check_identities(encoder, module.strategies)

    def train_dataloader(self) -> StatefulDataLoader:
        """An endless stream of batches, which `trainer.max_steps` cuts: a resumed run takes the next one of it."""
        return self._loader(self._train, ENDLESS, self.seed, self.num_workers)

    def held_out_batches(self) -> StatefulDataLoader:
        """The held-out batches, drawn as training's are, the same at every evaluation."""
        return self._loader(self._held_out, self.eval_batches, EVALUATION_SEED, num_workers=0)

    def initialisation_batch(self) -> Batch:
        """Windows for the data-dependent initialisation: the same on every rank."""
        num_samples = self._train.audio.num_samples
        batches = UniformBatches(num_samples, self.window_samples, NUM_INITIALISATION_WINDOWS, 1, self.seed)
        return self._train.__getitems__(next(iter(batches)))

    def class_names(self, task: str) -> list[str]:
        """The classes of an online probe: `phones` or `speaker`.

        Raises:
            ValueError: naming the option, if the data have none.
        """
        assert self.corpus is not None, "set up before probes are"
        if task == "phones":
            if not self.corpus.labels:
                raise ValueError("an online probe of phones needs frame labels: give data.alignments")
            return self.corpus.labels
        if not self.corpus.speakers:
            raise ValueError("an online probe of speakers needs a 'speaker' column in the manifest")
        return self.corpus.speakers

    def _batches(self, windows: WindowDataset, num_batches: int, seed: int) -> UniformBatches | SameSpeakerBatches:
        assert self.corpus is not None, "set up before batches are"
        return self.corpus.batches(
            windows,
            self.sampler,
            self.batch_size,
            num_batches,
            seed,
            speakers_per_batch=self.speakers_per_batch,
            require_distinct_files=self._require_distinct_files,
            rank=self.trainer.global_rank,
            world_size=self.trainer.world_size,
        )

    def _loader(self, windows: WindowDataset, num_batches: int, seed: int, num_workers: int) -> StatefulDataLoader:
        return StatefulDataLoader(
            windows,
            batch_sampler=self._batches(windows, num_batches, seed),
            collate_fn=windows.collate,
            num_workers=num_workers,
            generator=torch.Generator().manual_seed(seed),  # so that the loader draws nothing from the global one
        )

    def _check_identities(self, encoder: Geometry, strategies: tuple[str, ...]) -> None:
        """Ask of some batches to come who could be contrasted with whom, without reading audio.

        A strategy that leaves rows without negatives then fails now, not at the first held-out evaluation.
        """
        for windows, seed in ((self._train, self.seed), (self._held_out, EVALUATION_SEED)):
            for batch in self._batches(windows, self.eval_batches, seed):
                files = [file for file, _ in batch]
                num_valid = np.minimum(windows.audio.num_samples[files], self.window_samples)
                for strategy in strategies:
                    check_rows(
                        strategy,
                        encoder.num_latents(torch.from_numpy(num_valid)),
                        torch.from_numpy(windows.sequence_ids[files]),
                        torch.from_numpy(windows.group_ids[files]),
                    )
