"""The loss of CPC: find z_{t+k} among latents of the batch, for every step, sequence and direction of time.

K steps, B observations, S sequences (an image has several), T latents, Q queries, N candidates, D latent dim.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cpc.candidates.draws import draw_excess_nats
from cpc.candidates.strategies import STRATEGIES
from cpc.contexts.grid import columns
from cpc.data.batch import Batch
from cpc.data.tensors import check_count, check_precision, check_tensor
from cpc.losses.candidate_sets import Sequences, copy_to_host, draw_row_negatives, plan
from cpc.losses.definition import CandidateSet
from cpc.losses.engine import COMPUTE, DEFAULT_ANCHOR_WEIGHT, REFERENCE, RingState, check_anchor, info_nce_rows
from cpc.losses.loss import EvalProtocol, Loss
from cpc.losses.output import ContrastiveOutput, RowLosses, concatenate_directions, sum_by_step
from cpc.losses.ranks import GatheredBatch, gather_batch
from cpc.predictors import Output, check_steps

EXCHANGES = ("gather", "ring")
Key = tuple[str, str]  # a direction of time and a strategy


class Predictions(NamedTuple):
    """The queries of one direction of time, the latents that they predict, and the sequences of these latents."""

    queries: Float[Tensor, "K S T D"]
    latents: Float[Tensor, "S T D"]
    sequences: Sequences


def predictions(output: Output, batch: Batch, num_observations: int | None = None) -> Iterator[Predictions]:
    """Yield the predictions of each direction of time; the columns of an image share the identity of the image.

    Identities are copied to the host once. Directions of the same size share their `Sequences`.

    Args:
        output: output of the model.
        batch: the observations of the output; `num_valid` counts latents, and `is_known` is a mask of latents.
        num_observations: number of observations that have identities; None: the number of observations that have
            latents.
    """
    targets = _targets(output)
    num = len(targets) if num_observations is None else num_observations
    num_valid, sequence_id, group_id = copy_to_host(batch.num_valid, batch.sequence_id, batch.group_id)
    is_known = None if batch.is_known is None else batch.is_known.cpu()
    ids = (num_valid, torch.arange(num) if sequence_id is None else sequence_id, group_id, is_known)
    by_size: dict[tuple[int, int], Sequences] = {}
    for direction, queries in output.queries.items():
        latents = columns(targets, direction)
        num_columns = len(latents) // len(targets)
        size = (num_columns * num, latents.shape[1])
        if size not in by_size:
            column_ids = (None if i is None else repeat(i, "b ... -> (b s) ...", s=num_columns) for i in ids)
            by_size[size] = Sequences.of(size, *column_ids)
        yield Predictions(queries, latents, by_size[size])


def _targets(output: Output) -> Tensor:
    return output.latents if output.targets is None else output.targets


class Contrastive(Loss):
    """InfoNCE against latents of the batch (eq. 4 of arXiv:1807.03748).

    In a process group the batch is that of all ranks, and every rank calls the loss at the same time. Each rank
    computes the losses of its own rows. `.loss` is scaled: its mean over ranks is the loss of the whole batch, and the
    mean gradient that DDP and FSDP take is the gradient of this loss (`cpc.losses.ranks`).

    Args:
        negatives: where negatives come from, in training and in the held-out bound: `mixed`, `same_speaker`,
            `mixed_excluding`, `same_speaker_excluding` or `sequence_only` (`cpc.candidates.STRATEGIES`).
        num_negatives: number of negatives drawn per row and step, uniformly with replacement; None: all candidates of
            the batch.
        shared_across_steps: draw once per (b, t) for all steps, as CPC_audio does.
        compute: `bf16` rounds the operands of the loss's matrix products to bfloat16; `reference` runs the definition
            (see `cpc.losses.info_nce`).
        auxiliary_negatives: further strategies to train with, and the share of each in the training loss. The strategy
            `negatives` has the remaining share; the bound is that of `negatives`. With `{"sequence_only": 0.75}` and
            `negatives="mixed"`, three quarters of the loss teach what is said, one quarter who speaks.
        skip_steps: number of latents between a context and the first latent that it predicts. For overlapping patches,
            the number of rows that overlap the context's row.
        exchange: how latents get from rank to rank. `gather` holds the latents of all ranks at once. `ring` holds the
            latents of two ranks at a time, so memory does not grow with the number of ranks. `ring` scores every
            candidate twice, sends one and a half times as much as `gather`, and cannot draw negatives.
        anchor: train with InfoNCE-anchor (Ryu et al. 2025, arXiv:2510.25983), whose optimum is
            s = log p(z | c) / p(z), where InfoNCE adds any constant K(c). `.loss` is the anchored objective
            (`cpc.losses.definition.anchored_rows`); all records stay those of InfoNCE. The mean score of positives then
            estimates the information (`cpc evaluate --estimators anchor`), and has no ceiling.
        anchor_weight: weight of the anchor's class for each negative: nu = anchor_weight n with n negatives. A low
            weight learns the constant slowly; a high weight costs more of `log N - L`.

    Raises:
        ValueError: if a strategy is unknown, the shares leave nothing for `negatives`, `num_negatives` is below 1,
            `skip_steps` is negative, `shared_across_steps` is given without `num_negatives`, `exchange="ring"` is
            combined with `num_negatives` or `compute="reference"`, or `anchor_weight` is not positive or is given
            without `anchor`.
    """

    uses_all_ranks = True

    def __init__(
        self,
        negatives: str = "mixed",
        num_negatives: int | None = None,
        shared_across_steps: bool = False,
        compute: Literal["float32", "bf16", "reference"] = "float32",
        auxiliary_negatives: dict[str, float] | None = None,
        skip_steps: int = 0,
        exchange: Literal["gather", "ring"] = "gather",
        anchor: bool = False,
        anchor_weight: float = DEFAULT_ANCHOR_WEIGHT,
    ) -> None:
        super().__init__(skip_steps)
        choices = {
            "negatives": (negatives, STRATEGIES),
            "compute": (compute, COMPUTE),
            "exchange": (exchange, EXCHANGES),
        }
        for name, (value, known) in choices.items():
            if value not in known:
                raise ValueError(f"`loss.{name}`={value!r} is not one of {', '.join(known)}")
        _check_auxiliary(auxiliary_negatives or {}, negatives)
        if num_negatives is not None:
            check_count("`loss.num_negatives`", num_negatives, 1)
        if shared_across_steps and num_negatives is None:
            raise ValueError(
                "`loss.shared_across_steps` applies only to drawn negatives: set num_negatives, or leave it out"
            )
        if exchange == "ring" and num_negatives is not None:
            raise ValueError(
                f"`loss.exchange`=ring scores every candidate and cannot draw "
                f"num_negatives={num_negatives}: leave num_negatives out, or choose exchange=gather"
            )
        if exchange == "ring" and compute == REFERENCE:
            raise ValueError(
                "`loss.compute`=reference needs all candidates at once, and exchange=ring does not hold "
                "them: choose exchange=gather"
            )
        check_anchor("loss.", anchor, anchor_weight)
        self.anchor = anchor
        self.anchor_weight = anchor_weight
        self.exchange = exchange
        self.negatives = negatives
        self.num_negatives = num_negatives
        self.shared_across_steps = shared_across_steps
        self.compute = compute
        self.auxiliary_negatives = dict(auxiliary_negatives or {})

    @property
    def training_strategies(self) -> tuple[str, ...]:
        """`negatives`, whose bound is recorded, and the auxiliary strategies."""
        return (self.negatives, *self.auxiliary_negatives)

    def held_out_strategies(self, extra: tuple[str, ...]) -> tuple[str, ...]:
        """Return `negatives` and the extra strategies."""
        return tuple(dict.fromkeys((self.negatives, *extra)))

    def forward(
        self,
        output: Output,
        batch: Batch,
        generator: torch.Generator | None = None,
        measure: EvalProtocol | None = None,
    ) -> ContrastiveOutput:
        """Return the loss of finding every z_{t+k} among its candidates.

        With auxiliary strategies `.loss` is the mean over all strategies, weighted by their shares. All other fields
        belong to the strategy `negatives`.
        """
        gathered = gather_batch(output, batch, self._strategies(measure), self.exchange)
        candidate_sets = self.candidate_sets(gathered, measure)  # on the host
        candidate_sets = self.draw_negatives(candidate_sets, output.latents.device, generator, measure)
        losses = self.row_losses(gathered.output, candidate_sets)  # on the device
        return self.reduce(losses, candidate_sets, len(output.latents))

    def candidate_sets(self, gathered: GatheredBatch, measure: EvalProtocol | None = None) -> dict[Key, CandidateSet]:
        """Return the candidate set of each direction of time and strategy, on the host.

        Only the shapes of the latents are read.
        """
        num_negatives = self.num_negatives if measure is None else measure.num_negatives
        sets, steps = {}, self.query_steps(gathered.output)
        by_direction = predictions(gathered.output, gathered.batch, sum(gathered.nums))
        for direction, (queries, latents, sequences) in zip(gathered.output.queries, by_direction, strict=True):
            _, num_sequences, num_latents, _ = queries.shape
            rank_slice = gathered.rank_slice(num_sequences)
            for strategy in self._strategies(measure):
                has_draws = num_negatives is not None
                rows = plan(strategy, sequences, num_latents, steps, rank_slice, has_draws, self.anchor)
                if rank_slice is not None and not rank_slice.is_apart and self.exchange == "ring":
                    num_per_observation = latents.shape[:2].numel() // len(gathered.output.latents)
                    nums = [num * num_per_observation for num in gathered.nums]
                    is_valid = rank_slice.select(sequences).is_valid(num_latents)
                    rows = rows._replace(ring=RingState.of(rows, nums, is_valid, latents.device))
                sets[direction, strategy] = rows
        return sets

    def draw_negatives(
        self,
        candidate_sets: dict[Key, CandidateSet],
        device: torch.device,
        generator: torch.Generator | None = None,
        measure: EvalProtocol | None = None,
    ) -> dict[Key, CandidateSet]:
        """Return the candidate sets on the device, with the negatives of each row if they are drawn."""
        num_negatives = self.num_negatives if measure is None else measure.num_negatives
        sets = {}
        for key, rows in candidate_sets.items():
            negatives = excess = None
            if num_negatives is not None:
                excess = draw_excess_nats(num_negatives, rows.num_negatives)
                negatives = draw_row_negatives(rows, num_negatives, generator, self.shared_across_steps, device)
            rows = rows._replace(draw_excess_nats=excess).on(device)._replace(negatives=negatives)
            sets[key] = rows._replace(left_out=negatives[:, 0]) if self.anchor and negatives is not None else rows
        return sets

    def row_losses(self, output: Output, candidate_sets: dict[Key, CandidateSet]) -> dict[Key, RowLosses]:
        """Return the losses of all rows; no shape depends on values of tensors, so the host waits for no GPU."""
        targets = _targets(output)
        vectors = {
            direction: (
                rearrange(queries, "k b t d -> (b t k) d"),
                rearrange(columns(targets, direction), "b t d -> (b t) d"),
            )
            for direction, queries in output.queries.items()
        }
        return {key: self._score(*vectors[key[0]], rows) for key, rows in candidate_sets.items()}

    def reduce(
        self, losses: dict[Key, RowLosses], candidate_sets: dict[Key, CandidateSet], num_observations: int
    ) -> ContrastiveOutput:
        """Return the mean loss over directions, and the sums of each step and observation."""
        by_direction: dict[str, list[ContrastiveOutput]] = {}
        for (direction, strategy), rows in candidate_sets.items():
            row_losses = losses[direction, strategy]
            sums = sum_by_step(row_losses, rows.step, rows.sequence, *rows.size[:2], rows.draw_excess_nats)
            by_direction.setdefault(direction, []).append(sums)
        return concatenate_directions([self._mix(*sums) for sums in by_direction.values()], num_observations)

    def _strategies(self, measure: EvalProtocol | None) -> tuple[str, ...]:
        return self.training_strategies if measure is None else (measure.strategy,)

    def _score(self, queries: Float[Tensor, "Q D"], candidates: Float[Tensor, "N D"], rows: CandidateSet) -> RowLosses:
        anchor_weight = self.anchor_weight if self.anchor else None
        return info_nce_rows(queries, candidates, rows, compute=self.compute, anchor_weight=anchor_weight)

    def _mix(self, main: ContrastiveOutput, *auxiliary: ContrastiveOutput) -> ContrastiveOutput:
        """Return the output of `negatives` with the weighted loss of all strategies."""
        if not auxiliary:
            return main
        loss, loss_nats = (1 - sum(self.auxiliary_negatives.values())) * main.loss, main.loss_nats
        for share, other in zip(self.auxiliary_negatives.values(), auxiliary, strict=True):
            loss = loss + share * other.loss
            loss_nats = loss_nats + 0 * other.loss_nats  # so that a loss that is not finite appears in the sums
        return main._replace(loss=loss, loss_nats=loss_nats)


def _check_auxiliary(shares: dict[str, float], negatives: str) -> None:
    option = "`loss.auxiliary_negatives`"
    for strategy, share in shares.items():
        if strategy not in STRATEGIES:
            raise ValueError(f"{option} names {strategy!r}, which is not one of {', '.join(STRATEGIES)}")
        if strategy == negatives:
            raise ValueError(f"{option} names {strategy!r}, which `negatives` already is: name another strategy")
        if not share > 0:
            raise ValueError(f"{option} gives {strategy!r} the share {share}: shares must be positive")
    if sum(shares.values()) >= 1:
        raise ValueError(
            f"the shares in {option} sum to {sum(shares.values()):g}: the sum must be below 1, so that a share is "
            f"left for negatives={negatives!r}, whose bound is recorded"
        )


def contrast(
    queries: Float[Tensor, "K B T D"],
    latents: Float[Tensor, "B T D"],
    *,
    strategy: str = "mixed",
    num_valid: Int[Tensor, " B"] | None = None,
    sequence_id: Int[Tensor, " B"] | None = None,
    group_id: Int[Tensor, " B"] | None = None,
    is_known: Bool[Tensor, "B T"] | None = None,
    steps: Sequence[int] | None = None,
    generator: torch.Generator | None = None,
    **options: Any,
) -> ContrastiveOutput:
    """Return the loss of `Contrastive` on tensors: find z_{t+k} with the query W_k c_t, for every k and t.

    The candidates of a row are all valid latents of the allowed sequences, the same for every k, and the positive.

    Args:
        queries: W_k c_t, steps first.
        latents: z.
        strategy: where negatives come from, a name in `cpc.candidates.STRATEGIES`.
        num_valid: number of latents of each sequence that are signal. All further latents are padding, which is neither
            target nor candidate. None: all are signal.
        sequence_id: sequences that may overlap share an id; None: all distinct.
        group_id: the speaker of each sequence, -1 where unknown.
        is_known: True for a known latent; unknown latents are treated as padding. None: all are known.
        steps: the step k of each of the K queries, in increasing order, to which `skip_steps` is added; None: 1..K.
        generator: source of the draws.
        options: options of `Contrastive`: `num_negatives`, `shared_across_steps`, `skip_steps`, `compute`, `anchor`,
            `anchor_weight`.

    Raises:
        ValueError: the errors of `Contrastive`; also if a tensor has a wrong dtype or shape, `steps` are not K
            increasing numbers of at least 1, `num_valid` counts more latents than there are, no sequence is longer than
            the first step, or the strategy leaves a row without negatives.
    """
    check_tensor("queries", queries, "floats", ("K", "B", "T", "D"))
    check_tensor("latents", latents, "floats", tuple(queries.shape[1:]))
    check_precision(queries=queries, latents=latents)
    ids: dict[str, Any] = {"num_valid": num_valid, "sequence_id": sequence_id, "group_id": group_id}
    ids["is_known"] = is_known
    batch = Batch.of(latents)._replace(**ids)
    if steps is not None and len(check_steps("steps", steps)) != len(queries):
        raise ValueError(f"steps={list(steps)} are {len(steps)} steps for {len(queries)} queries: give one per query")
    output = Output(latents, latents, {"": queries}, None, steps=None if steps is None else tuple(steps))
    return Contrastive(strategy, **options)(output, batch, generator)
