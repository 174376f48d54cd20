"""What training asks of its data, whatever the modality."""

from abc import abstractmethod
from typing import Any

import lightning.pytorch as pl
from torch import Tensor

from cpc.data.streams.resuming import check_same_batches
from cpc.evaluation import Protocol
from cpc.model import CPC


class PretrainingData(pl.LightningDataModule):
    """A corpus as training takes it; subclasses open it in `setup`, and give the loader.

    Args:
        batch_size: windows, images or lanes per batch and device.
        train_split: what is trained on.
        eval_split: the held-out part for the bound, another one.
        num_workers: loader processes; 0 loads in the training process.

    Attributes:
        modality: what the encoder must encode.
        unit: what a batch is made of, in words.
        predicts: what a loss can ask the model to find in these data, `latents`, or `classes` of what follows.
        is_continuous: each batch goes on where the one before it ended, so that contexts do too.
        corpus: None before `setup`.
        batches: the endless stream that is trained on, with the state that a resumed run goes on from.
        held_out: the held-out batches, with the `protocol` they were drawn by and their number `num_batches`.
    """

    modality: str
    unit: str
    predicts = "latents"
    is_continuous = False
    batches: Any
    held_out: Any

    def __init__(self, batch_size: int, train_split: str, eval_split: str, num_workers: int) -> None:
        super().__init__()
        require_positive(batch_size=batch_size)
        if train_split == eval_split:
            raise ValueError(
                f"data.train_split and data.eval_split are both {train_split!r}: a bound on what was trained on can "
                "exceed the truth; hold a part out"
            )
        self.batch_size = batch_size
        self.train_split = train_split
        self.eval_split = eval_split
        self.num_workers = num_workers
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
        return {"data.eval_split": self.eval_split}

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint's batches were made of."""
        return {"fingerprint": self.batches.state_dict()["fingerprint"]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Refuse other data or batches before the loader meets them: Lightning would bury its reason.

        Raises:
            ValueError: naming what differs.
        """
        check_same_batches(state_dict["fingerprint"], self.state_dict()["fingerprint"])

    @abstractmethod
    def class_names(self, task: str) -> list[str]:
        """The classes of an online probe.

        Raises:
            ValueError: naming the option, if the data have none.
        """

    @abstractmethod
    def initialisation_batch(self) -> Tensor:
        """Observations for the data-dependent initialisation: the same on every rank."""

    def _check_parts(self, model: CPC) -> None:
        """Refuse an encoder of other observations, and a loss that predicts what these data lack."""
        encoder, loss = model.encoder, model.loss_part
        if encoder.modality != self.modality:
            raise ValueError(
                f"model.encoder is {type(encoder).__name__}, which encodes {encoder.modality}, but the data are "
                f"{self.modality}: choose another encoder, or set modality to {encoder.modality}"
            )
        if loss.predicts != self.predicts:
            raise ValueError(
                f"model.loss is {type(loss).__name__}, which predicts {loss.predicts}, but data of {self.modality} are "
                f"predicted as {self.predicts}: choose "
                + ("Contrastive" if self.predicts == "latents" else "ClassTableLoss, as configs/text do")
            )


def require_positive(**values: int) -> None:
    """Refuse options of the data section that are below 1.

    Raises:
        ValueError: naming the first.
    """
    for name, value in values.items():
        if value < 1:
            raise ValueError(f"data.{name}={value} must be at least 1")
