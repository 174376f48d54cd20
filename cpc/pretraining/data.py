"""The training data of a run: a modality's batches, which resume exactly, and what is refused before the first step."""

import re
import signal
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor
from torchdata.stateful_dataloader import StatefulDataLoader

from cpc.data.batch import Batch
from cpc.data.drawn import Drawn, DrawnCorpus, HeldOut
from cpc.data.modality import HeldOutBatches, Modality, Training
from cpc.data.store.atomic import json_text
from cpc.data.store.contents import say
from cpc.data.streams.resumable_index import check_same_batches, is_of_files
from cpc.model import CPC
from cpc.pretraining.batch_checks import check_batches
from cpc.pretraining.ranks import Ranks
from cpc.probes.online import OnlineProbe


class PretrainingData(pl.LightningDataModule):
    """What Lightning asks of data.

    Args:
        modality: the source and its options, a config's `data` section.
        ranks: connected before the corpus is opened.

    Raises:
        ValueError: if what is held out is trained on, or an option is not of JSON's types.

    Attributes:
        corpus: the opened source; None before `setup`.
        training: the endless stream that is trained on.
        held_out: the held-out batches.
    """

    training: Training
    held_out: HeldOutBatches

    def __init__(self, modality: Modality, ranks: Ranks) -> None:
        super().__init__()
        if modality.train_split == modality.eval_split:
            raise ValueError(
                f"data.train_split and data.eval_split are both {modality.train_split!r}: a bound on what was trained "
                "on can exceed the truth; hold a part out"
            )
        try:
            json_text(modality.saved_settings)
        except (TypeError, ValueError) as error:
            raise ValueError(f"an option of data cannot be noted beside the model as JSON: {error}") from error
        self.modality = modality
        self.ranks = ranks
        self.corpus: Any = None
        self._held_out_files: dict[str, Any] = {}  # of text, whose training knows the whole of it, none

    def setup(self, stage: str) -> None:
        """Open the corpus, check that data, model and strategies fit, standardise the encoder's input.

        Raises:
            ValueError: naming the option.
        """
        if self.corpus is not None:
            return
        trainer, modality = self.trainer, self.modality
        self.ranks.connect(trainer)
        module: Any = trainer.lightning_module
        model: CPC = module.model
        modality.check(model)
        trained = model.loss_part.training_strategies
        if isinstance(modality, Drawn):
            unread = modality.unread_speakers([*trained, *module.strategies], trained[0])
            if unread:  # no mistake: a config may hold it, and an option choose another sampler
                say(re.sub(r"`(\w+)`", r"data.\1", unread))
        corpus = modality.open(model.encoder, to_train=True)
        modality.check_split(corpus, modality.train_split, trained, trained[0])
        modality.check_split(corpus, modality.eval_split, module.strategies, trained[0])
        self.corpus = corpus
        for probe in trainer.callbacks:
            if isinstance(probe, OnlineProbe):
                self.class_names(probe.task)
        if not model.is_initialised:
            modality.standardise(model.encoder, corpus)
        ranks = {"rank": trainer.global_rank, "world_size": trainer.world_size}
        self.training = modality.training(corpus, model, **ranks)
        self.held_out = modality.held_out(corpus, model, **ranks)
        if isinstance(self.held_out, HeldOut):
            made_from = self.held_out.windows.draws["made_from"]
            self._held_out_files = {name: each for name, each in made_from.items() if is_of_files(name)}
        if isinstance(modality, Drawn) and modality.predicts == "latents":  # draws are known before they are decoded
            check_batches(modality, model, self.training, self.held_out, module.strategies, module.device)

    def train_dataloader(self) -> StatefulDataLoader:
        """An endless stream of batches, which `trainer.max_steps` cuts: a resumed run takes the next one of it."""
        return StatefulDataLoader(
            self.training.dataset,
            batch_sampler=self.training.batches,
            collate_fn=_whole,
            num_workers=self.modality.num_workers,
            worker_init_fn=_leave_signals_to_training,
            generator=torch.Generator(),  # so that the loader draws nothing from the global one
        )

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        """Observations alone: what is known of them is read on the host, and a GPU would be waited for."""
        x, target = (
            each if each is None or each.device == device else _pinned(each, device).to(device, non_blocking=True)
            for each in (batch.x, batch.target)
        )
        return batch._replace(x=x, target=target)

    def initialisation_batch(self) -> Tensor:
        """Observations for the data-dependent initialisation: the same on every rank."""
        return self.modality.initialisation_batch(self.corpus)

    def class_names(self, task: str) -> list[str]:
        """The classes of an online probe.

        Raises:
            ValueError: naming the option, if the data have none.
        """
        return self.modality.class_names(self.corpus, task)

    def is_group_task(self, task: str) -> bool:
        """Return whether the classes of an online probe are the groups of the batches, such as speakers."""
        return isinstance(self.corpus, DrawnCorpus) and task == self.corpus.nouns[0]

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint's batches were made of, those that are held out too."""
        fingerprint = self.training.batches.state_dict()["fingerprint"]
        return {"fingerprint": fingerprint | {f"held-out {name}": each for name, each in self._held_out_files.items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Refuse other data or batches before the loader meets them: Lightning would bury its reason.

        Raises:
            ValueError: naming what differs.
        """
        check_same_batches(state_dict["fingerprint"], self.state_dict()["fingerprint"])


def _pinned(x: Tensor, device: torch.device) -> Tensor:
    """Where a GPU can fetch it from while the host goes on."""
    return x.pin_memory() if device.type == "cuda" else x


def _whole(batch: Batch) -> Batch:
    """Data sets hand on whole batches."""
    return batch


def _leave_signals_to_training(worker: int) -> None:
    """A terminal or a scheduler signals the whole group of processes: a worker that obeyed would end the last step."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
