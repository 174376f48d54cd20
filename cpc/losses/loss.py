"""What every loss of a model promises, and what it answers to those who train and measure the model."""

from abc import abstractmethod
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from cpc.data.batch import Batch
from cpc.data.tensors import check_count
from cpc.losses.output import ContrastiveOutput
from cpc.predictors import Output


class EvalProtocol(NamedTuple):
    """What a number is measured with: a strategy, and how many negatives are drawn per row, None for all."""

    strategy: str
    num_negatives: int | None


class Loss(nn.Module):
    """A model's output and its batch -> L. A subclass gives `forward`, `training_strategies`, `held_out_strategies`.

    Args:
        skip_steps: latents between a context and the first one predicted. Latents that share input with the context
            are told rather than predicted: patches that overlap by half want to skip one row.

    Attributes:
        num_negatives: drawn per row in training; None: all candidates.
        predicts: `latents`, or `classes` of what follows, which data give as `Batch.labels`.
        meets_all_ranks: whether rows meet candidates of all ranks; their draws then need one seed on all ranks.
        has_sparse_gradients: whether the optimiser must take sparse tensors.

    Raises:
        ValueError: if `skip_steps` is negative.
    """

    num_negatives: int | None = None
    predicts: Literal["latents", "classes"] = "latents"
    meets_all_ranks: bool = False
    has_sparse_gradients: bool = False

    def __init__(self, skip_steps: int = 0) -> None:
        super().__init__()
        check_count("model.loss.init_args.skip_steps", skip_steps, 0)
        self.skip_steps = skip_steps

    @property
    @abstractmethod
    def training_strategies(self) -> tuple[str, ...]:
        """Those whose losses make up the training loss; that of the bound first."""

    @abstractmethod
    def held_out_strategies(self, extra: tuple[str, ...]) -> tuple[str, ...]:
        """Those of the held-out bound, that of training first.

        Raises:
            ValueError: on further ones that the loss does not know.
        """

    def connect(self, encoder: Any, context: Any) -> int:
        """Check that encoder and context go with the loss; `CPC` calls it.

        Returns:
            The width of the queries that it takes.

        Raises:
            ValueError: if they do not.
        """
        return encoder.dim

    def encode(self, encoder: Any, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """The latents of observations that contexts read, and those that queries find, None where they are the same."""
        return encoder(x), None

    def set_step(self, batch: int) -> None:
        """Say which training batch comes next, by its number, to a loss that depends on it."""

    @abstractmethod
    def forward(
        self,
        output: Output,
        batch: Batch,
        generator: torch.Generator | None = None,
        measure: EvalProtocol | None = None,
    ) -> ContrastiveOutput:
        """The loss.

        Args:
            output: of the model.
            batch: whose observations these are; `num_valid` counts latents here (`CPC.in_latents`).
            generator: source of the draws.
            measure: a strategy and a number of negatives to measure with; None: as the model trains.
        """
