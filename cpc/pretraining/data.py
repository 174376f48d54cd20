"""What training asks of its data, whatever the modality: batches that resume exactly, and the held-out ones."""

from abc import abstractmethod
from typing import Any

import lightning.pytorch as pl
import torch
from jaxtyping import Int
from torch import Tensor
from torchdata.stateful_dataloader import StatefulDataLoader

from cpc.data.batches import Window
from cpc.evaluation import HeldOut, Protocol
from cpc.losses.contrast import check_rows
from cpc.model import CPC
from cpc.probes.online import OnlineProbe

ENDLESS = 2**62
NUM_CHECKED_BATCHES = 1000  # a quarter of a second


class PretrainingData(pl.LightningDataModule):
    """A corpus as training takes it; subclasses open it, and say what they check.

    Args:
        batch_size: windows or images per batch and device.
        train_split: what is trained on.
        eval_split: the held-out part for the bound, another one.
        eval_batches: batches of one held-out evaluation and device.
        num_workers: loader processes; 0 loads in the training process.
        seed: of the batches.

    Attributes:
        modality: what the encoder must encode.
        unit: what a batch is made of, in words.
        corpus: None before `setup`.
        held_out: the held-out batches.
    """

    modality: str
    unit: str

    def __init__(
        self, batch_size: int, train_split: str, eval_split: str, eval_batches: int, num_workers: int, seed: int
    ) -> None:
        super().__init__()
        for name, value in (("batch_size", batch_size), ("eval_batches", eval_batches)):
            if value < 1:
                raise ValueError(f"data.{name}={value} must be at least 1")
        if train_split == eval_split:
            raise ValueError(
                f"data.train_split and data.eval_split are both {train_split!r}: a bound on what was trained on can "
                "exceed the truth; hold a part out"
            )
        self.batch_size = batch_size
        self.train_split = train_split
        self.eval_split = eval_split
        self.eval_batches = eval_batches
        self.num_workers = num_workers
        self.seed = seed
        self.corpus: Any = None

    @property
    @abstractmethod
    def source(self) -> str:
        """Where the data come from, as the user named it."""

    @property
    @abstractmethod
    def protocol(self) -> Protocol:
        """How held-out batches are drawn."""

    @property
    def settings(self) -> dict[str, Any]:
        """What may be other when a run is continued, by option: it is named then."""
        return {"data.eval_split": self.eval_split, "data.eval_batches": self.eval_batches}

    @abstractmethod
    def class_names(self, task: str) -> list[str]:
        """The classes of an online probe.

        Raises:
            ValueError: naming the option, if the data have none.
        """

    @abstractmethod
    def initialisation_batch(self) -> Tensor:
        """Observations for the data-dependent initialisation: the same on every rank."""

    def setup(self, stage: str) -> None:
        """Open the corpus, check that observations, model and strategies fit it, standardise the encoder's input."""
        if self.corpus is not None:
            return
        module = self.trainer.lightning_module
        model: CPC = module.model  # type: ignore[assignment]
        self._check_parts(model)
        self._check_length(model)
        corpus = self._open(model.encoder)
        protocol, trained = self.protocol, model.training_strategies
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
        self._train_batches = corpus.batches(
            self._train,
            protocol.sampler,
            self.batch_size,
            ENDLESS,
            self.seed,
            speakers_per_batch=protocol.speakers_per_batch,
            require_distinct_files="same_speaker_excluding" in trained,
            **ranks,
        )
        self.held_out = HeldOut(corpus, protocol, model.negatives, self.eval_batches, **ranks)
        self._check_identities(model, module.strategies)

    def train_dataloader(self) -> StatefulDataLoader:
        """An endless stream of batches, which `trainer.max_steps` cuts: a resumed run takes the next one of it."""
        return StatefulDataLoader(
            self._train,
            batch_sampler=self._train_batches,
            collate_fn=self._train.collate,
            num_workers=self.num_workers,
            generator=torch.Generator().manual_seed(self.seed),  # so that the loader draws nothing from the global one
        )

    def _check_parts(self, model: CPC) -> None:
        """Refuse an encoder of other observations."""
        encoder = model.encoder
        if encoder.modality != self.modality:
            raise ValueError(
                f"model.encoder is {type(encoder).__name__}, which encodes {encoder.modality}, but the data are "
                f"{self.modality}: choose another encoder, or set modality to {encoder.modality}"
            )

    @abstractmethod
    def _open(self, encoder: Any) -> Any:
        """The corpus, for an encoder's geometry."""

    @abstractmethod
    def _check_length(self, model: CPC) -> None:
        """Refuse observations too short for the model's predictions."""

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
        for index in range(min(NUM_CHECKED_BATCHES, -(-self._train_batches.windows_per_pass // self.batch_size))):
            identities = self._identities(model.encoder, self._train, self._train_batches.batch(index))
            for strategy in model.training_strategies:
                check_rows(strategy, *identities)
        for strategy in measured:
            for batch in self.held_out.batches(strategy):
                check_rows(strategy, *self._identities(model.encoder, self.held_out.windows, batch))


def _any_same_speaker(strategies: tuple[str, ...]) -> bool:
    return any(strategy.startswith("same_speaker") for strategy in strategies)
