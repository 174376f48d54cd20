"""The data module of a run: a modality's batches, which resume exactly, and checks before the first step."""

import re
import signal
from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from cpc.candidates.strategies import check_rows
from cpc.data.batch import Batch
from cpc.data.map_style import MapStyleCorpus, identities
from cpc.data.modality import HeldOutBatches, Modality, Training
from cpc.data.store.atomic import json_text
from cpc.data.store.contents import say
from cpc.data.streams.stream import check_same_batches, naming
from cpc.evaluation.held_out import BYTES_PER_NEGATIVE, memory_bytes
from cpc.model import CPC


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
            # Without decoding data: a step fits in memory, and every row of the batches has negatives.
            _check_memory(modality, model, self.training, module.device)
            _check_training_rows(modality, model, self.training)
            _check_held_out_rows(model, self.held_out, module.strategies)

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


NUM_CHECKED_BATCHES = 1000  # the check of so many batches takes a quarter of a second


def _check_training_rows(modality: Any, model: CPC, training: Training) -> None:
    """Check the training batches of one pass (at most `NUM_CHECKED_BATCHES`) for the training strategies."""
    encoder, batches, strategies = model.encoder, training.batches, model.loss_part.training_strategies
    batch_indices = batches.of_all_ranks if model.loss_part.uses_all_ranks else batches.batch
    for index in range(min(NUM_CHECKED_BATCHES, -(-batches.draws_per_pass // len(batch_indices(0))))):
        batch_ids = identities(encoder, training.dataset, batch_indices(index))
        for strategy in strategies:
            with naming(modality.train_split):
                check_rows(strategy, *batch_ids, nearest=model.steps[0].k)


def _check_held_out_rows(model: CPC, held_out: Any, strategies: tuple[str, ...]) -> None:
    """Check all held-out batches now, so that none of these strategies fails at the first evaluation."""
    batch_indices = held_out.draws_of_all_ranks if model.loss_part.uses_all_ranks else held_out.draws
    for strategy in strategies:
        try:
            for indices in batch_indices(strategy):
                batch_ids = identities(model.encoder, held_out.windows, indices)
                with naming(held_out.split):
                    check_rows(strategy, *batch_ids, nearest=model.steps[0].k)
        except ValueError as error:
            if strategy in model.loss_part.training_strategies:
                raise
            also = f"the held-out bound is also measured with {strategy!r} of model.extra_strategies"
            raise ValueError(f"{also}: {error}; or leave it out of model.extra_strategies") from error


def _check_memory(modality: Any, model: CPC, training: Training, device: torch.device) -> None:
    """Check that the largest tensors of a step fit in memory. With its layers a step takes several times as much."""
    num_sequences, num_latents = model.context.sequences(training.dataset.num_latents)
    num_negatives = model.loss_part.num_negatives
    num_valid, *_ = identities(model.encoder, training.dataset, training.batches.batch(0))
    mean_length = num_valid.sum().item() / len(num_valid) / num_sequences
    distances = [step.k for step in model.steps if step.direction == model.steps[0].direction]
    num_rows = num_sequences * sum(max(0.0, mean_length - k) for k in distances)  # at least, by Jensen
    num_queries = num_sequences * num_latents * model.predictor.num_steps
    per_observation = {
        modality.unit: 4 * training.dataset.num_values,
        "queries": 4 * num_queries * model.encoder.dim,
        "the table of candidates": modality.batch_size * num_sequences**2 * num_latents,
        f"negatives of `loss.num_negatives`={num_negatives}": BYTES_PER_NEGATIVE * num_rows * (num_negatives or 0),
    }
    gigabytes = {name: modality.batch_size * size / 1e9 for name, size in per_observation.items() if size}
    is_cpu = device.type == "cpu"
    total_bytes = memory_bytes() if is_cpu else torch.cuda.get_device_properties(device).total_memory
    if sum(gigabytes.values()) > total_bytes / 1e9:
        parts = ", ".join(f"{name} {size:.1f}" for name, size in gigabytes.items())
        step = f"`batch_size`={modality.batch_size} {modality.unit} of {training.dataset.num_values} values"
        needed = f"{sum(gigabytes.values()):.0f} GB ({parts}), but this {'machine' if is_cpu else 'device'}"
        lower = f"lower `batch_size` or `{modality.size_option}`"
        raise ValueError(f"a step on {step} needs at least {needed} has {total_bytes / 1e9:.0f}: {lower}")
