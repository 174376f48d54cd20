"""The loss of CPC: find z_{t+k} among latents of the batch, for every step, sequence and direction of time.

K steps, B observations, S sequences (an image has several), T latents, D latent dim.
"""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor

from cpc.candidates.draws import draw_excess_nats
from cpc.candidates.strategies import STRATEGIES
from cpc.contexts.grid import columns
from cpc.data.batch import Batch
from cpc.data.tensors import check_count, check_precision, check_tensor
from cpc.losses.gathered import GatheredBatch, of_all_ranks
from cpc.losses.info_nce import loss_of_rows
from cpc.losses.loss import EvalProtocol, Loss
from cpc.losses.plan import Plan, Sequences, check_identities, on_host, plan
from cpc.losses.result import ContrastiveOutput, RowLosses, side_by_side, summed
from cpc.losses.ring import Passing, ring_loss
from cpc.losses.tiles import COMPUTE
from cpc.predictors import Output

EXCHANGES = ("gather", "ring")


class Predictions(NamedTuple):
    """Of one direction of time: queries, the latents that they predict, and whose these are."""

    queries: Float[Tensor, "K S T D"]
    latents: Float[Tensor, "S T D"]
    sequences: Sequences


def predictions(output: Output, batch: Batch, num_observations: int | None = None) -> Iterator[Predictions]:
    """For each direction of time; the columns of an image share its identity. `num_valid` counts latents.

    Identities come to the host once; directions of one size share what follows from them. `num_observations` counts
    those that have identities, None: as many as have latents.
    """
    targets = _targets(output)
    num = len(targets) if num_observations is None else num_observations
    num_valid, sequence_id, group_id = on_host(batch.num_valid, batch.sequence_id, batch.group_id)
    ids = (num_valid, torch.arange(num) if sequence_id is None else sequence_id, group_id)
    by_size: dict[tuple[int, int], Sequences] = {}
    for queries, latents in _by_direction(output):
        each = len(latents) // len(targets)
        size = (each * num, latents.shape[1])
        if size not in by_size:
            of_columns = (None if i is None else repeat(i, "b -> (b s)", s=each) for i in ids)
            by_size[size] = Sequences.of(size, *of_columns)
        yield Predictions(queries, latents, by_size[size])


def _targets(output: Output) -> Tensor:
    return output.latents if output.targets is None else output.targets


def _by_direction(output: Output) -> Iterator[tuple[Float[Tensor, "K S T D"], Float[Tensor, "_ T D"]]]:
    """Queries and what they find."""
    return ((queries, columns(_targets(output), direction)) for direction, queries in output.queries.items())


class Meeting(NamedTuple):
    """Which rows meet which candidates: on the device of the latents, where shapes are known beforehand.

    Attributes:
        plan: of all rows.
        negatives: `[M, R]`, those that were drawn; None: all.
        excess: `[M]` nats that draws may add to the bound.
        passing: what other ranks lend, if it passes by.
    """

    plan: Plan
    negatives: Tensor | None
    excess: Tensor | None
    passing: Passing | None


class Contrastive(Loss):
    """InfoNCE against latents of the batch (eq. 4 of arXiv:1807.03748).

    In a process group the batch is that of all ranks, and every rank calls the loss at the same time. Each computes
    the losses of its own rows; `.loss` is scaled so that its mean over ranks, and the mean gradient that DDP and FSDP
    take, are those of the whole batch in one process (`cpc.losses.gathered`).

    Args:
        negatives: where negatives come from, in training and in the held-out bound: `mixed`, `same_speaker`,
            `mixed_excluding`, `same_speaker_excluding` or `sequence_only` (`cpc.candidates.STRATEGIES`).
        num_negatives: drawn per row and step, uniformly with replacement; None: every candidate of the batch.
        shared_across_steps: draw once per (b, t) for all steps, as CPC_audio does (see `Plan.draw`).
        compute: `bf16` rounds the operands of the loss's matrix products to bfloat16; `reference` computes the
            definition as it is written (see `cpc.losses.info_nce`).
        auxiliary_negatives: further strategies to train with, and the share of each one's loss in the training loss;
            `negatives` has the rest, and the bound is its alone. `{"sequence_only": 0.75}` beside `mixed`: three
            quarters of the loss teach what is said, one quarter who speaks.
        skip_steps: latents between a context and the first one predicted: rows of patches that overlap its own.
        exchange: of latents between ranks: `gather` holds those of all ranks at once; `ring` those of two, so that
            memory stays as ranks are added, scores every candidate twice, and sends half as much again. It draws no
            negatives.

    Raises:
        ValueError: on an unknown strategy, shares that leave nothing for `negatives`, fewer than one negative, a
            negative `skip_steps`, draws shared where none are made, or draws from a ring.
    """

    meets_all_ranks = True

    def __init__(
        self,
        negatives: str = "mixed",
        num_negatives: int | None = None,
        shared_across_steps: bool = False,
        compute: Literal["float32", "bf16", "reference"] = "float32",
        auxiliary_negatives: dict[str, float] | None = None,
        skip_steps: int = 0,
        exchange: Literal["gather", "ring"] = "gather",
    ) -> None:
        super().__init__(skip_steps)
        if negatives not in STRATEGIES:
            raise ValueError(f"model.loss.init_args.negatives={negatives!r} is not one of {', '.join(STRATEGIES)}")
        _check_auxiliary(auxiliary_negatives or {}, negatives)
        if num_negatives is not None:
            check_count("model.loss.init_args.num_negatives", num_negatives, 1)
        if shared_across_steps and num_negatives is None:
            raise ValueError(
                "model.loss.init_args.shared_across_steps is about negatives that are drawn: set num_negatives, or "
                "leave it out"
            )
        if compute not in COMPUTE:
            raise ValueError(f"model.loss.init_args.compute={compute!r} is not one of {', '.join(COMPUTE)}")
        if exchange not in EXCHANGES:
            raise ValueError(f"model.loss.init_args.exchange={exchange!r} is not one of {', '.join(EXCHANGES)}")
        if exchange == "ring" and compute == "reference":
            raise ValueError(
                "model.loss.init_args.compute=reference needs the latents of all ranks at once: choose exchange=gather"
            )
        if exchange == "ring" and num_negatives is not None:
            raise ValueError(
                f"model.loss.init_args.exchange=ring meets every candidate, but num_negatives={num_negatives} draws "
                "them: leave num_negatives out, or choose exchange=gather"
            )
        self.exchange = exchange
        self.negatives = negatives
        self.num_negatives = num_negatives
        self.shared_across_steps = shared_across_steps
        self.compute = compute
        self.auxiliary_negatives = dict(auxiliary_negatives or {})

    @property
    def training_strategies(self) -> tuple[str, ...]:
        """`negatives`, whose bound is watched, and the auxiliary ones."""
        return (self.negatives, *self.auxiliary_negatives)

    def held_out_strategies(self, extra: tuple[str, ...]) -> tuple[str, ...]:
        """`negatives`, and any others."""
        return tuple(dict.fromkeys((self.negatives, *extra)))

    def forward(
        self,
        output: Output,
        batch: Batch,
        generator: torch.Generator | None = None,
        measure: EvalProtocol | None = None,
    ) -> ContrastiveOutput:
        """Contrast every z_{t+k} with its candidates.

        With auxiliary strategies `.loss` is the mean of all, weighted by their shares; all else is of `negatives`.
        """
        check_identities(len(_targets(output)), batch.num_valid, batch.sequence_id, batch.group_id)
        everyone = of_all_ranks(output, batch, self._strategies(measure), self.exchange)
        return self.of_meetings(everyone.output, self.meetings(everyone, generator, measure))

    def meetings(
        self, everyone: GatheredBatch, generator: torch.Generator | None = None, measure: EvalProtocol | None = None
    ) -> list[list[Meeting]]:
        """Who meets whom, of each direction of time and each strategy: all of `forward` that the host does.

        Of the latents the shapes are asked alone.
        """
        strategies = self._strategies(measure)
        num_negatives = self.num_negatives if measure is None else measure.num_negatives
        has_draws = num_negatives is not None
        of_directions = []
        for queries, latents, sequences in predictions(everyone.output, everyone.batch, sum(everyone.nums)):
            part, device, of_strategies = everyone.part(queries.shape[1]), latents.device, []
            for strategy in strategies:
                planned = plan(strategy, sequences, latents.shape[1], len(queries), self.skip_steps, part, has_draws)
                excess = negatives = passing = None
                if num_negatives is not None:
                    excess = draw_excess_nats(num_negatives, planned.num_negatives).to(device, non_blocking=True)
                    negatives = planned.draw(num_negatives, generator, self.shared_across_steps, device)
                if part is not None and not part.is_apart and self.exchange == "ring":
                    each = latents.shape[:2].numel() // len(everyone.output.latents)
                    num_valid = part.of(sequences).num_valid
                    passing = Passing.of(planned, [num * each for num in everyone.nums], num_valid, device)
                of_strategies.append(Meeting(planned.on(device), negatives, excess, passing))
            of_directions.append(of_strategies)
        return of_directions

    def _strategies(self, measure: EvalProtocol | None) -> tuple[str, ...]:
        return self.training_strategies if measure is None else (measure.strategy,)

    def of_meetings(self, output: Output, meetings: list[list[Meeting]]) -> ContrastiveOutput:
        """The loss of rows that are known: nothing here depends on values, so compilers take it whole."""
        of_directions = []
        for (queries, latents), of_strategies in zip(_by_direction(output), meetings, strict=True):
            of_rows, candidates = rearrange(queries, "k b t d -> (b t k) d"), rearrange(latents, "b t d -> (b t) d")
            contrasts = []
            for planned, negatives, excess, passing in of_strategies:
                row = self._rows(of_rows, candidates, planned, negatives, passing)
                contrasts.append(summed(row, planned.step, planned.sequence, *planned.size[:2], excess))
            of_directions.append(self._shared(*contrasts))
        return side_by_side(of_directions, len(output.latents))

    def _rows(
        self,
        queries: Float[Tensor, "Q D"],
        candidates: Float[Tensor, "N D"],
        planned: Plan,
        negatives: Tensor | None,
        passing: Passing | None,
    ) -> RowLosses:
        if passing is not None:
            return ring_loss(queries, candidates, planned, passing, self.compute)
        return loss_of_rows(queries, candidates, planned, negatives, self.compute)

    def _shared(self, of_bound: ContrastiveOutput, *auxiliary: ContrastiveOutput) -> ContrastiveOutput:
        if not auxiliary:
            return of_bound
        loss, loss_nats = (1 - sum(self.auxiliary_negatives.values())) * of_bound.loss, of_bound.loss_nats
        for share, other in zip(self.auxiliary_negatives.values(), auxiliary, strict=True):
            loss = loss + share * other.loss
            loss_nats = loss_nats + 0 * other.loss_nats  # the same, unless the step is not finite here
        return of_bound._replace(loss=loss, loss_nats=loss_nats)


def _check_auxiliary(shares: dict[str, float], negatives: str) -> None:
    option = "model.loss.init_args.auxiliary_negatives"
    for strategy, share in shares.items():
        if strategy not in STRATEGIES:
            raise ValueError(f"{option} names {strategy!r}, which is not one of {', '.join(STRATEGIES)}")
        if strategy == negatives:
            raise ValueError(f"{option} names {strategy!r}, which is negatives itself: name another strategy")
        if not share > 0:
            raise ValueError(f"{option} gives {strategy!r} the share {share}: shares must be positive")
    if sum(shares.values()) >= 1:
        raise ValueError(
            f"the shares in {option} sum to {sum(shares.values()):g}: below 1 a part is left for "
            f"negatives={negatives!r}, whose bound is watched"
        )


def contrast(
    queries: Float[Tensor, "K B T D"],
    latents: Float[Tensor, "B T D"],
    *,
    strategy: str = "mixed",
    num_valid: Int[Tensor, " B"] | None = None,
    sequence_id: Int[Tensor, " B"] | None = None,
    group_id: Int[Tensor, " B"] | None = None,
    generator: torch.Generator | None = None,
    **options: Any,
) -> ContrastiveOutput:
    """`Contrastive` on tensors: score z_{t+k} against the row's candidates with the query W_k c_t, for every k and t.

    Candidates are all valid latents of the allowed sequences, the same set for every k, plus the positive.

    Args:
        queries: W_k c_t, steps first.
        latents: z.
        strategy: where negatives come from, a name in `cpc.candidates.STRATEGIES`.
        num_valid: how many latents of each sequence are signal (the rest is padding, neither target nor candidate);
            None: all.
        sequence_id: sequences that may overlap share an id; None: all distinct.
        group_id: the speaker of each sequence, -1 where unknown.
        generator: source of the draws.
        options: of `Contrastive`: `num_negatives`, `shared_across_steps`, `skip_steps`, `compute`.

    Raises:
        ValueError: as `Contrastive`, on tensors of another kind or shape, or if `num_valid` counts more latents than
            there are, no sequence is longer than the first step, or the strategy leaves a row without negatives.
    """
    check_tensor("queries", queries, "floats", ("K", "B", "T", "D"))
    check_tensor("latents", latents, "floats", tuple(queries.shape[1:]))
    check_precision(queries=queries, latents=latents)
    ids: dict[str, Any] = {"num_valid": num_valid, "sequence_id": sequence_id, "group_id": group_id}
    batch = Batch.of(latents)._replace(**ids)
    return Contrastive(strategy, **options)(Output(latents, latents, {"": queries}, None), batch, generator)
