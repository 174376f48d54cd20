"""The data module of a run: a modality's batches, which resume exactly, and checks before the first step."""

import re
import signal
from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from cpc.data.batch import Batch
from cpc.data.map_style import MapStyleCorpus
from cpc.data.modality import HeldOutBatches, Modality, Training
from cpc.data.store.atomic import json_text
from cpc.data.store.contents import say
from cpc.data.streams.stream import check_same_batches
from cpc.model import CPC
from cpc.pretraining.batch_checks import check_batches


class PretrainingData(pl.LightningDataModule):
    """The training and held-out batches of a run."""

    training: Training
    held_out: HeldOutBatches

    def __init__(self, modality: Modality, tasks: Sequence[str] = ()) -> None:
        super().__init__()
        if modality.train_split == modality.eval_split:
            raise ValueError(f"`train_split` and `eval_split` are both {modality.train_split!r}: hold out a part")
        try:
            json_text(modality.saved_settings)
        except (TypeError, ValueError) as error:
            raise ValueError(f"an option of data cannot be saved with the model as JSON: {error}") from error
        self.modality = modality
        self.tasks = tasks
        self.corpus: Any = None
        self._held_out_files: dict[str, Any] = {}

    def setup(self, stage: str) -> None:
        """Open the corpus, check that data, model and strategies fit together, decode, and standardise the encoder."""
        if self.corpus is not None:
            return
        trainer, modality = self.trainer, self.modality
        module: Any = trainer.lightning_module
        model: CPC = module.model
        modality.check(model)
        strategies = model.loss_part.training_strategies
        if message := modality.unread_speakers([*strategies, *module.strategies], strategies[0]):
            # only a warning, since an option may have replaced the sampler of a config
            say(re.sub(r"`(\w+)`", r"data.\1", message))
        corpus = modality.open(model.encoder, is_training=True)
        modality.check_split(corpus, modality.train_split, strategies, strategies[0])
        module.strategies = modality.measurable(corpus, modality.eval_split, module.strategies)
        modality.check_split(corpus, modality.eval_split, module.strategies, strategies[0])
        self.corpus = corpus
        for task in self.tasks:
            self.class_names(task)
        modality.prepare(corpus, is_training=True)
        if not model.is_initialised:
            modality.standardise(model.encoder, corpus)
        ranks = {"rank": trainer.global_rank, "world_size": trainer.world_size}
        self.training = modality.training(corpus, model, **ranks)
        self.held_out = modality.held_out(corpus, model, **ranks)
        self._held_out_files = modality.held_out_files(self.held_out)
        if modality.are_rows_known and modality.predicts == "latents":
            check_batches(modality, model, self.training, self.held_out, module.strategies, module.device)

    def train_dataloader(self) -> StatefulDataLoader:
        """Return a loader of the endless training stream, which ends at `trainer.max_steps`."""
        return StatefulDataLoader(
            self.training.dataset,
            batch_sampler=self.training.batches,
            collate_fn=_identity,
            num_workers=self.modality.num_workers,
            worker_init_fn=_ignore_signals,
            generator=torch.Generator(),  # so that the loader does not use the global generator
        )

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        """Move the observations, as `Batch.to` does."""
        return batch.to(device)

    def class_names(self, task: str) -> list[str]:
        """Return the classes of an online probe."""
        return self.modality.class_names(self.corpus, task)

    def is_group_task(self, task: str) -> bool:
        """Return whether the classes of an online probe are the groups of the batches, such as speakers."""
        return isinstance(self.corpus, MapStyleCorpus) and task == self.corpus.nouns[0]

    def state_dict(self) -> dict[str, Any]:
        """Return the fingerprint of the training and held-out data."""
        fingerprint = self.training.batches.state_dict()["fingerprint"]
        return {"fingerprint": fingerprint | {f"held-out {name}": each for name, each in self._held_out_files.items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Check that the data are those of the checkpoint; Lightning would hide an error of the loader."""
        check_same_batches(state_dict["fingerprint"], self.state_dict()["fingerprint"])


def _identity(batch: Batch) -> Batch:
    """Return the batch unchanged, because data sets return whole batches."""
    return batch


def _ignore_signals(worker: int) -> None:
    """Ignore stop signals in a worker.

    A terminal or a scheduler sends signals to the whole process group, but the last step still needs the workers.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
