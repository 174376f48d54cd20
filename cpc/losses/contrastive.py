"""The loss of CPC: find z_{t+k} among latents of the batch, for every step, sequence and direction of time.

K steps, B observations, S sequences (an image has several), T latents, Q queries, N candidates, D latent dim.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cpc.candidates.strategies import STRATEGIES
from cpc.contexts.grid import columns
from cpc.data.batch import Batch
from cpc.data.tensors import check_count, check_precision, check_tensor
from cpc.losses.candidate_sets import Sequences, copy_to_host, draw_row_negatives, plan
from cpc.losses.definition import CandidateSet
from cpc.losses.engine import COMPUTE, info_nce_rows
from cpc.losses.loss import EvalProtocol, Loss
from cpc.losses.output import ContrastiveOutput, RowLosses, concatenate_directions, sum_by_step
from cpc.losses.ranks import gather_batch
from cpc.predictors import Output, check_steps


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
    targets = output.latents if output.targets is None else output.targets
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
        compute: how the loss's matrix products are rounded, see `cpc.losses.info_nce`.
        auxiliary_negatives: further strategies to train with, and the share of each in the training loss. The strategy
            `negatives` has the remaining share; the bound is that of `negatives`. With `{"sequence_only": 0.75}` and
            `negatives="mixed"`, three quarters of the loss teach what is said, one quarter who speaks.
        skip_steps: number of latents between a context and the first latent that it predicts. For overlapping patches,
            the number of rows that overlap the context's row.

    Raises:
        ValueError: if a strategy is unknown, the shares leave nothing for `negatives`, `num_negatives` is below 1,
            `skip_steps` is negative, or `shared_across_steps` is given without `num_negatives`.
    """

    uses_all_ranks = True

    def __init__(
        self,
        negatives: str = "mixed",
        num_negatives: int | None = None,
        shared_across_steps: bool = False,
        compute: Literal["auto", "float32", "tf32", "bf16", "reference"] = "auto",
        auxiliary_negatives: dict[str, float] | None = None,
        skip_steps: int = 0,
    ) -> None:
        super().__init__(skip_steps)
        for name, value, known in (("negatives", negatives, STRATEGIES), ("compute", compute, COMPUTE)):
            if value not in known:
                raise ValueError(f"`loss.{name}`={value!r} is not one of {', '.join(known)}")
        _check_auxiliary(auxiliary_negatives or {}, negatives)
        if num_negatives is not None:
            check_count("`loss.num_negatives`", num_negatives, 1)
        if shared_across_steps and num_negatives is None:
            raise ValueError(
                "`loss.shared_across_steps` applies only to drawn negatives: set num_negatives, or leave it out"
            )
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
        strategies = self.training_strategies if measure is None else (measure.strategy,)
        num_negatives = self.num_negatives if measure is None else measure.num_negatives
        gathered = gather_batch(output, batch, strategies)
        steps, device = self.query_steps(output), output.latents.device
        by_direction = []
        for queries, latents, sequences in predictions(gathered.output, gathered.batch, sum(gathered.nums)):
            _, num_sequences, num_latents, _ = queries.shape
            rank_slice = gathered.rank_slice(num_sequences)
            vectors = rearrange(queries, "k b t d -> (b t k) d"), rearrange(latents, "b t d -> (b t) d")
            sums = []
            for strategy in strategies:
                draws = (num_negatives, self.shared_across_steps)
                rows = plan(strategy, sequences, num_latents, steps, rank_slice, *draws, device)
                # From here on no shape depends on values, so the host waits for no GPU.
                if num_negatives is not None:
                    rows = rows._replace(negatives=draw_row_negatives(rows, num_negatives, generator))
                losses = self._score(*vectors, rows)
                sums.append(sum_by_step(losses, rows.step, rows.sequence, *rows.size[:2], rows.draw_excess_nats))
            by_direction.append(self._mix(*sums))
        return concatenate_directions(by_direction, len(output.latents))

    def _score(self, queries: Float[Tensor, "Q D"], candidates: Float[Tensor, "N D"], rows: CandidateSet) -> RowLosses:
        return info_nce_rows(queries, candidates, rows, compute=self.compute)

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
        options: options of `Contrastive`: `num_negatives`, `shared_across_steps`, `skip_steps`, `compute`.

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
