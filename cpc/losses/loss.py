"""The interface of the losses of a model: what training and evaluation call and read."""

from abc import abstractmethod
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cpc.config.argument_rules import Natural, checked
from cpc.losses.output import ContrastiveOutput
from cpc.losses.sequences import Geometry, Sequences
from cpc.predictors import Output


class EvalProtocol(NamedTuple):
    """The strategy, and the number of negatives per row (None: all), with which a loss is measured."""

    strategy: str
    num_negatives: int | None


class Loss(nn.Module):
    """The loss of an output and a batch. Subclasses define `forward`, `training_strategies`, `held_out_strategies`.

    Args:
        skip_steps: number of latents between a context and the first latent that it predicts. Skip the latents that
            share input with the context, since they could be copied: of patches that overlap by half, one row.

    Attributes:
        num_negatives: number of negatives drawn per row in training; None: all candidates.
        predicts: `latents`; or `classes`, the next classes in `Batch.labels`.
        needs_places: whether queries predict the local latents of an encoder with `latents_and_places`.
        uses_all_ranks: whether rows are scored against candidates of all ranks; draws then need one seed.
        has_sparse_gradients: whether the optimiser must accept sparse gradients.
    """

    num_negatives: int | None = None
    predicts: Literal["latents", "classes"] = "latents"
    needs_places: bool = False
    uses_all_ranks: bool = False
    has_sparse_gradients: bool = False

    @checked
    def __init__(self, skip_steps: Natural = 0) -> None:
        super().__init__()
        self.skip_steps = skip_steps

    def sequences(self, output: Output, *ids: Tensor | None, labels: Tensor | None = None) -> Sequences:
        """Return the sequences of an output; `ids` are the arguments of `Sequences.of`."""
        if output.targets is not None and output.targets.shape[:-1] != output.latents.shape[:-1]:
            raise ValueError(f"targets {list(output.targets.shape)} do not fit latents {list(output.latents.shape)}")
        num_steps = len(next(iter(output.queries.values())))
        distances = tuple(self.skip_steps + step for step in output.steps or range(1, num_steps + 1))
        geometry = Geometry(tuple(output.latents.shape[1:-1]), tuple(output.queries), distances)
        return Sequences.of(geometry, len(output.latents), *ids, labels=labels, device=output.latents.device)

    @property
    @abstractmethod
    def training_strategies(self) -> tuple[str, ...]:
        """The strategies of the training loss. The strategy whose bound is recorded comes first."""

    @abstractmethod
    def held_out_strategies(self, extra: tuple[str, ...]) -> tuple[str, ...]:
        """Return the strategies of the held-out bound: that of training, then `extra`, which the loss must know."""

    def connect(self, encoder: Any, context: Any) -> int:
        """Return the width of the queries that the loss needs; ValueError if it cannot be used with these parts."""
        return encoder.dim

    def set_step(self, batch: int) -> None:
        """Set the index of the next training batch, for a loss that depends on it."""

    def watch(self, optimiser: Optimizer) -> None:
        """Watch the steps of the optimiser of the model, for a loss that depends on them."""

    @abstractmethod
    def forward(
        self,
        output: Output,
        sequences: Sequences,
        generator: torch.Generator | None = None,
        measure: EvalProtocol | None = None,
    ) -> ContrastiveOutput:
        """Return the loss of an output and its sequences (`CPC.sequences`).

        Args:
            output: output of the model.
            sequences: lengths, identities and labels.
            generator: source of the draws.
            measure: the strategy and the number of negatives to measure with; None: those of training.
        """
