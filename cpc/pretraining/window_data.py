"""Windows and images for training: batches that resume exactly, and the held-out ones."""

from abc import abstractmethod
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torchdata.stateful_dataloader import StatefulDataLoader

from cpc.data.batches import Window, naming
from cpc.data.resuming import ENDLESS
from cpc.evaluation import HeldOut
from cpc.losses.contrast import check_rows
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
    """

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
        if model.classes is not None:
            raise ValueError(
                f"model.classes predicts classes of what follows, which {self.modality} has none of: leave it out, or "
                "set modality to text"
            )
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
                with naming(self.train_split):
                    check_rows(strategy, *identities)
        for strategy in measured:
            for batch in self.held_out.batches(strategy):
                with naming(self.eval_split):
                    check_rows(strategy, *self._identities(model.encoder, self.held_out.windows, batch))


def _any_same_speaker(strategies: tuple[str, ...]) -> bool:
    return any(strategy.startswith("same_speaker") for strategy in strategies)
