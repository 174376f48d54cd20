"""Windows and images for training: batches that resume exactly, and the held-out ones."""

import os
import signal
from abc import abstractmethod
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torchdata.stateful_dataloader import StatefulDataLoader

from cpc.data.streams.resuming import ENDLESS
from cpc.data.streams.windows import Window, naming
from cpc.evaluation import HeldOut
from cpc.losses.plan import check_rows
from cpc.model import CPC
from cpc.pretraining.data import PretrainingData, require_positive
from cpc.probes.online import OnlineProbe

NUM_CHECKED_BATCHES = 1000  # a quarter of a second


class WindowData(PretrainingData):
    """A corpus whose latents are contrasted with each other; subclasses open it, and say what they check.

    Args:
        batch_size: windows or images per batch and device.
        train_split: what is trained on.
        eval_split: the held-out part for the bound, another one.
        eval_batches: batches of one held-out evaluation and device.
        num_workers: loader processes; 0 loads in the training process.
        seed: of the batches.

    Attributes:
        size_option: what makes observations larger.
    """

    size_option: str

    def __init__(
        self, batch_size: int, train_split: str, eval_split: str, eval_batches: int, num_workers: int, seed: int
    ) -> None:
        super().__init__(batch_size, train_split, eval_split, num_workers)
        require_positive(eval_batches=eval_batches)
        self.eval_batches = eval_batches
        self.seed = seed

    @property
    def settings(self) -> dict[str, Any]:
        """Also how much is held out."""
        return super().settings | {"data.eval_batches": self.eval_batches}

    def setup(self, stage: str) -> None:
        """Open the corpus, check that observations, model and strategies fit it, standardise the encoder's input."""
        if self.corpus is not None:
            return
        module = self.trainer.lightning_module
        model: CPC = module.model  # type: ignore[assignment]
        self._check_parts(model)
        self._check_length(model)
        corpus = self._open(model.encoder)
        protocol, trained = self.protocol, model.loss_part.training_strategies
        by_speaker = protocol.sampler == "same_speaker"
        corpus.check(self.train_split, needs_speakers=by_speaker or _any_same_speaker(trained))
        corpus.check(self.eval_split, needs_speakers=by_speaker or _any_same_speaker(module.strategies))
        self.corpus = corpus
        for probe in self.trainer.callbacks:
            if isinstance(probe, OnlineProbe):
                self.class_names(probe.task)
        if not model.is_initialised:
            model.encoder.set_statistics(*corpus.statistics(self.train_split))
        ranks = {"rank": self.trainer.global_rank, "world_size": self.trainer.world_size}
        self._train = corpus.windows(self.train_split, is_training=True)
        self.batches = corpus.batches(
            self._train,
            protocol.sampler,
            self.batch_size,
            ENDLESS,
            self.seed,
            speakers_per_batch=protocol.speakers_per_batch,
            require_distinct_files="same_speaker_excluding" in trained,
            **ranks,
        )
        self.held_out = HeldOut(corpus, protocol, trained[0], self.eval_batches, **ranks)
        self._check_memory(model, module.device)
        self._check_identities(model, module.strategies)

    def train_dataloader(self) -> StatefulDataLoader:
        """An endless stream of batches, which `trainer.max_steps` cuts: a resumed run takes the next one of it."""
        return StatefulDataLoader(
            self._train,
            batch_sampler=self.batches,
            collate_fn=self._train.collate,
            num_workers=self.num_workers,
            worker_init_fn=_leave_signals_to_training,
            generator=torch.Generator().manual_seed(self.seed),  # so that the loader draws nothing from the global one
        )

    @abstractmethod
    def _open(self, encoder: Any) -> Any:
        """The corpus, for an encoder's geometry."""

    @abstractmethod
    def _check_length(self, model: CPC) -> None:
        """Refuse observations too short for the model's predictions."""

    @abstractmethod
    def _size(self, encoder: Any) -> tuple[int, int, int]:
        """Of an observation: samples or pixel values, the sequences that it makes, and the latents of each."""

    @abstractmethod
    def _identities(
        self, encoder: Any, windows: Any, drawn: list[Window]
    ) -> tuple[Int[Tensor, " B"], Int[Tensor, " B"], Int[Tensor, " B"]]:
        """Number of latents, sequence and group of every observation drawn, without a look at its samples or pixels."""

    def _check_identities(self, model: CPC, measured: tuple[str, ...]) -> None:
        """Ask who could be contrasted with whom, without reading audio, of all held-out and the first training batches.

        A strategy that leaves rows without negatives then fails now, not at the first held-out evaluation. Training
        batches must serve the strategies of training alone; those after the first are checked when their turn comes.
        """
        for index in range(min(NUM_CHECKED_BATCHES, -(-self.batches.windows_per_pass // self.batch_size))):
            identities = self._identities(model.encoder, self._train, self.batches.batch(index))
            for strategy in model.loss_part.training_strategies:
                with naming(self.train_split):
                    check_rows(strategy, *identities)
        for strategy in measured:
            try:
                for batch in self.held_out.batches(strategy):
                    with naming(self.eval_split):
                        check_rows(strategy, *self._identities(model.encoder, self.held_out.windows, batch))
            except ValueError as error:
                if strategy in model.loss_part.training_strategies:
                    raise
                raise ValueError(
                    f"the held-out bound is measured with {strategy!r} too, of model.extra_strategies: {error}; or "
                    "leave it out of model.extra_strategies ([]: none)"
                ) from error

    def _check_memory(self, model: CPC, device: torch.device) -> None:
        """Refuse a first step that cannot fit, before any of its memory is taken.

        Only what is certain to be held at once is counted; a step takes several times as much, with its layers.
        """
        num_values, num_sequences, num_latents = self._size(model.encoder)
        num_negatives = model.loss_part.num_negatives
        num_valid, *_ = self._identities(model.encoder, self._train, self.batches.batch(0))
        mean_length = num_valid.sum().item() / len(num_valid) / num_sequences
        distances = [step.k for step in model.steps if step.direction == model.steps[0].direction]
        num_rows = num_sequences * sum(max(0.0, mean_length - k) for k in distances)  # no more than there are (Jensen)
        num_queries = num_sequences * num_latents * model.predictor.num_steps
        per_observation = {
            self.unit: 4 * num_values,
            "queries": 4 * num_queries * model.encoder.dim,
            "the table of who meets whom": self.batch_size * num_sequences**2 * num_latents,
            f"draws of model.loss.init_args.num_negatives={num_negatives}": 16 * num_rows * (num_negatives or 0),
        }
        gigabytes = {what: self.batch_size * size / 1e9 for what, size in per_observation.items() if size}
        on_cpu = device.type == "cpu"
        there = _memory_bytes() if on_cpu else torch.cuda.get_device_properties(device).total_memory
        if sum(gigabytes.values()) > there / 1e9:
            parts = ", ".join(f"{what} {size:.1f}" for what, size in gigabytes.items())
            raise ValueError(
                f"a step on data.batch_size={self.batch_size} {self.unit} of {num_values} values needs at least "
                f"{sum(gigabytes.values()):.0f} GB ({parts}), and this {'machine' if on_cpu else 'device'} has "
                f"{there / 1e9:.0f}: lower data.batch_size, {self.size_option} or "
                "model.loss.init_args.num_negatives"
            )


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _leave_signals_to_training(worker: int) -> None:
    """A terminal or a scheduler signals the whole group of processes: a worker that obeyed would end the last step."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _any_same_speaker(strategies: tuple[str, ...]) -> bool:
    return any(strategy.startswith("same_speaker") for strategy in strategies)
