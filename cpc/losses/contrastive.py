"""The loss of CPC: find z_{t+k} among latents of the batch, for every step, sequence and direction of time.

K steps, B observations, S sequences (an image has several), T latents, D latent dim.
"""

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
from cpc.losses.candidate_sets import CandidateSet, Sequences, candidate_set_of, check_identities, on_host
from cpc.losses.engine.ring import RingState, ring_loss
from cpc.losses.engine.tiles import COMPUTE
from cpc.losses.info_nce import loss_of_rows
from cpc.losses.loss import EvalProtocol, Loss
from cpc.losses.output import ContrastiveOutput, RowLosses, concatenate_directions, sum_by_step
from cpc.losses.ranks import GatheredBatch, gather_batch
from cpc.predictors import Output

EXCHANGES = ("gather", "ring")


class Predictions(NamedTuple):
    """The queries of one direction of time, the latents that they predict, and the sequences of these latents."""

    queries: Float[Tensor, "K S T D"]
    latents: Float[Tensor, "S T D"]
    sequences: Sequences


def predictions(output: Output, batch: Batch, num_observations: int | None = None) -> dict[str, Predictions]:
    """Return the predictions of each direction of time. The columns of an image share its identity.

    Identities move to the host once, and directions of one size share them.

    Args:
        output: of the model.
        batch: whose observations these are; `num_valid` counts latents.
        num_observations: the number of observations that have identities; None: those that have latents.
    """
    num_targets = len(targets_of(output))
    num_observations = num_targets if num_observations is None else num_observations
    num_valid, sequence_id, group_id = on_host(batch.num_valid, batch.sequence_id, batch.group_id)
    ids = (num_valid, torch.arange(num_observations) if sequence_id is None else sequence_id, group_id)
    sequences: dict[tuple[int, int], Sequences] = {}
    found = {}
    for direction, (queries, latents) in queries_and_targets(output).items():
        num_columns = len(latents) // num_targets
        size = (num_columns * num_observations, latents.shape[1])
        if size not in sequences:
            columns_ids = (None if i is None else repeat(i, "b -> (b s)", s=num_columns) for i in ids)
            sequences[size] = Sequences.of(size, *columns_ids)
        found[direction] = Predictions(queries, latents, sequences[size])
    return found


Key = tuple[str, str]  # a direction of time and a strategy


class Negatives(NamedTuple):
    """Drawn negatives of each row.

    Attributes:
        indices: `[M, R]`, among the candidates.
        excess_nats: `[M]`, how much repeated draws may add to log N - L.
    """

    indices: Tensor
    excess_nats: Tensor


class Contrastive(Loss):
    """InfoNCE against latents of the batch (eq. 4 of arXiv:1807.03748).

    In a process group the batch is that of all ranks, and every rank calls the loss at the same time. Each computes
    the losses of its own rows; `.loss` is scaled so that its mean over ranks, and the mean gradient that DDP and FSDP
    take, are those of the whole batch in one process (`cpc.losses.ranks`).

    Args:
        negatives: where negatives come from, in training and in the held-out bound: `mixed`, `same_speaker`,
            `mixed_excluding`, `same_speaker_excluding` or `sequence_only` (`cpc.candidates.STRATEGIES`).
        num_negatives: drawn per row and step, uniformly with replacement; None: every candidate of the batch.
        shared_across_steps: draw once per (b, t) for all steps, as CPC_audio does (see `CandidateSet.draw`).
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

        The steps are those of equation 4: gather the latents of all ranks, choose the candidates of each row, draw
        negatives if asked to, compute the loss of each row, and reduce. With auxiliary strategies `.loss` is the mean
        of all losses, weighted by their shares; the other fields belong to `negatives`.
        """
        check_identities(len(targets_of(output)), batch.num_valid, batch.sequence_id, batch.group_id)
        gathered = gather_batch(output, batch, self._strategies(measure), self.exchange)
        candidate_sets = self.candidate_sets(gathered, measure)
        negatives = self.draw_negatives(candidate_sets, gathered.output.latents.device, generator, measure)
        losses = self.row_losses(gathered.output, candidate_sets, negatives)
        return self.reduce(losses, candidate_sets, negatives, len(output.latents))

    def candidate_sets(self, gathered: GatheredBatch, measure: EvalProtocol | None = None) -> dict[Key, CandidateSet]:
        """Return the rows of each direction and strategy, with the candidates of each row, on the host.

        Only the shapes of the latents are read.
        """
        has_draws = self._num_negatives(measure) is not None
        found = {}
        for direction, (queries, latents, sequences) in predictions(
            gathered.output, gathered.batch, sum(gathered.nums)
        ).items():
            num_steps, num_queried, num_latents = queries.shape[:3]
            part = gathered.part(num_queried)
            for strategy in self._strategies(measure):
                rows = candidate_set_of(strategy, sequences, num_latents, num_steps, self.skip_steps, part, has_draws)
                if part is not None and not part.is_apart and self.exchange == "ring":
                    num_each = latents.shape[:2].numel() // len(gathered.output.latents)
                    nums = [num * num_each for num in gathered.nums]
                    ring = RingState.of(rows, nums, part.of(sequences).num_valid, latents.device)
                    rows = rows._replace(ring=ring)
                found[direction, strategy] = rows
        return found

    def draw_negatives(
        self,
        candidate_sets: dict[Key, CandidateSet],
        device: torch.device,
        generator: torch.Generator | None = None,
        measure: EvalProtocol | None = None,
    ) -> dict[Key, Negatives]:
        """Return the negatives that are drawn for each row, on `device`; an empty dict if every candidate counts."""
        num = self._num_negatives(measure)
        if num is None:
            return {}
        return {
            key: Negatives(
                rows.draw(num, generator, self.shared_across_steps, device),
                draw_excess_nats(num, rows.num_negatives).to(device, non_blocking=True),
            )
            for key, rows in candidate_sets.items()
        }

    def row_losses(
        self, output: Output, candidate_sets: dict[Key, CandidateSet], negatives: dict[Key, Negatives]
    ) -> dict[Key, RowLosses]:
        """Return the loss of each row. Nothing here or in `reduce` depends on values, so compilers take both whole."""
        tensors = queries_and_targets(output)
        found = {}
        for (direction, strategy), rows in candidate_sets.items():
            queries, latents = tensors[direction]
            indices = negatives[direction, strategy].indices if negatives else None
            found[direction, strategy] = self._row_losses(
                rearrange(queries, "k b t d -> (b t k) d"),
                rearrange(latents, "b t d -> (b t) d"),
                rows.on(latents.device),
                indices,
            )
        return found

    def _row_losses(
        self,
        queries: Float[Tensor, "Q D"],
        candidates: Float[Tensor, "N D"],
        candidate_set: CandidateSet,
        negatives: Tensor | None,
    ) -> RowLosses:
        if candidate_set.ring is not None:
            return ring_loss(queries, candidates, candidate_set, candidate_set.ring, self.compute)
        return loss_of_rows(queries, candidates, candidate_set, negatives, self.compute)

    def reduce(
        self,
        losses: dict[Key, RowLosses],
        candidate_sets: dict[Key, CandidateSet],
        negatives: dict[Key, Negatives],
        num_observations: int,
    ) -> ContrastiveOutput:
        """Sum the rows by step and observation, mix the strategies by their shares, and concatenate the directions."""
        by_direction: dict[str, list[ContrastiveOutput]] = {}
        for key, row in losses.items():
            rows = candidate_sets[key].on(row.loss_nats.device)
            excess = negatives[key].excess_nats if negatives else None
            sums = sum_by_step(row, rows.step, rows.sequence, *rows.size[:2], excess)
            by_direction.setdefault(key[0], []).append(sums)
        return concatenate_directions([self._mix(*sums) for sums in by_direction.values()], num_observations)

    def _mix(self, bound: ContrastiveOutput, *auxiliary: ContrastiveOutput) -> ContrastiveOutput:
        """Return the output whose bound is recorded, with the weighted loss of all strategies."""
        if not auxiliary:
            return bound
        loss, loss_nats = (1 - sum(self.auxiliary_negatives.values())) * bound.loss, bound.loss_nats
        for share, other in zip(self.auxiliary_negatives.values(), auxiliary, strict=True):
            loss = loss + share * other.loss
            loss_nats = loss_nats + 0 * other.loss_nats  # unchanged, unless the other loss is not finite
        return bound._replace(loss=loss, loss_nats=loss_nats)

    def _strategies(self, measure: EvalProtocol | None) -> tuple[str, ...]:
        return self.training_strategies if measure is None else (measure.strategy,)

    def _num_negatives(self, measure: EvalProtocol | None) -> int | None:
        return self.num_negatives if measure is None else measure.num_negatives


def targets_of(output: Output) -> Tensor:
    """Return the latents that queries find: the targets, if the output has them."""
    return output.latents if output.targets is None else output.targets


def queries_and_targets(output: Output) -> dict[str, tuple[Float[Tensor, "K S T D"], Float[Tensor, "_ T D"]]]:
    """Return, for each direction of time, the queries and the sequences of latents that they are scored against."""
    return {direction: (q, columns(targets_of(output), direction)) for direction, q in output.queries.items()}


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
