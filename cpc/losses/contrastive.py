"""The loss of CPC: find z_{t+k} among latents of the batch, for every step, sequence and direction of time.

J directions of time, K steps, B observations, S sequences (an image has several), T latents, Q queries, N candidates, M
rows, R drawn negatives, D latent dim.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cpc.candidates.strategies import STRATEGIES
from cpc.config.argument_rules import Choices, Count, Range, checked
from cpc.data.tensors import check_precision, check_tensor
from cpc.losses.candidate_sets import Plan, plan
from cpc.losses.definition import CandidateSet
from cpc.losses.engine import info_nce_rows
from cpc.losses.loss import EvalProtocol, Loss
from cpc.losses.output import ContrastiveOutput, RowLosses, sum_by_step
from cpc.losses.ranks import gather_latents, gather_sequences
from cpc.losses.sequences import Sequences
from cpc.predictors import Output, check_steps


def flat_queries(output: Output) -> Float[Tensor, "Q D"]:
    """Return the queries of all directions, in the order of `cpc.losses.sequences`: by observation, place and step."""
    num = len(output.latents)
    each = [rearrange(queries, "k (b s) t d -> b (s t k) d", b=num) for queries in output.queries.values()]
    return rearrange(each[0] if len(each) == 1 else torch.cat(each, 1), "b q d -> (b q) d")


def predicted(output: Output) -> Float[Tensor, "B ... D"]:
    """Return the latents that queries predict."""
    return output.latents if output.targets is None else output.targets


class Contrastive(Loss):
    """InfoNCE against latents of the batch (eq. 4 of arXiv:1807.03748).

    In a process group the batch is that of all ranks, and every rank calls the loss at the same time for its own rows.
    The mean of `.loss` over ranks is the loss of the whole batch (`cpc.losses.ranks`).

    Args:
        negatives: where negatives come from, in training and in the held-out bound: `mixed`, `same_speaker`,
            `mixed_excluding`, `same_speaker_excluding` or `sequence_only` (`cpc.candidates.STRATEGIES`).
        num_negatives: number of negatives drawn per row and step, uniformly with replacement; None: all candidates of
            the batch.
        shared_across_steps: draw once per (b, t) for all steps, as CPC_audio does.
        compute: how the loss's matrix products are rounded, see `cpc.losses.info_nce`.
        auxiliary_negatives: further strategies to train with, and the share of each in the training loss. The strategy
            `negatives` has the remaining share, and the bound. With `{"sequence_only": 0.75}` and `negatives="mixed"`,
            three quarters of the loss teach phones, one quarter speakers.
        skip_steps: number of latents between a context and the first latent that it predicts, see `Loss`.

    Attributes:
        plans: the plan of each strategy in the last call. A CUDA graph of the call must hold them.

    Raises:
        ValueError: if shares leave nothing for `negatives`, or `shared_across_steps` has no `num_negatives`.
    """

    uses_all_ranks = True
    plans: tuple[Plan, ...] = ()

    @checked
    def __init__(
        self,
        negatives: str = "mixed",
        num_negatives: Count | None = None,
        shared_across_steps: bool = False,
        compute: Literal["auto", "float32", "tf32", "bf16", "reference"] = "auto",
        auxiliary_negatives: dict[str, float] | None = None,
        skip_steps: int = 0,
    ) -> None:
        super().__init__(skip_steps)
        Choices(STRATEGIES).check("`loss.negatives`", negatives)
        _check_auxiliary(auxiliary_negatives or {}, negatives)
        if shared_across_steps and num_negatives is None:
            raise ValueError("`loss.shared_across_steps` is for drawn negatives: set num_negatives, or leave it out")
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
        sequences: Sequences,
        generator: torch.Generator | None = None,
        measure: EvalProtocol | None = None,
    ) -> ContrastiveOutput:
        """Return the loss of finding every z_{t+k} among its candidates.

        With auxiliary strategies `.loss` is their weighted mean. All other fields belong to the strategy `negatives`.
        """
        strategies = self.training_strategies if measure is None else (measure.strategy,)
        num_negatives = self.num_negatives if measure is None else measure.num_negatives
        everyone, share = gather_sequences(sequences, strategies)
        queries, candidates = flat_queries(output), gather_latents(predicted(output), share)
        options = (everyone, share, num_negatives, self.shared_across_steps)
        self.plans = tuple(plan(strategy, *options) for strategy in strategies)
        # From here on no shape depends on values, so the host waits for no GPU.
        outputs = []
        for rows, draws in self.plans:
            drawn = None if draws is None else draws.draw(generator)
            losses = self._score(queries, candidates, rows, drawn)
            excess = None if draws is None else draws.excess_nats
            size = (rows.num_steps, len(rows.candidate_mask))
            outputs.append(sum_by_step(losses, rows.step, rows.sequence, *size, excess))
        main, *auxiliary = outputs
        if not auxiliary:
            return main
        loss, loss_nats = (1 - sum(self.auxiliary_negatives.values())) * main.loss, main.loss_nats
        for weight, other in zip(self.auxiliary_negatives.values(), auxiliary, strict=True):
            loss = loss + weight * other.loss
            loss_nats = loss_nats + 0 * other.loss_nats  # so that a loss that is not finite appears in the sums
        return main._replace(loss=loss, loss_nats=loss_nats)

    def _score(self, queries: Tensor, candidates: Tensor, rows: CandidateSet, drawn: Tensor | None) -> RowLosses:
        return info_nce_rows(queries, candidates, rows, drawn, compute=self.compute)


def _check_auxiliary(shares: dict[str, float], negatives: str) -> None:
    option = "`loss.auxiliary_negatives`"
    for strategy, share in shares.items():
        Choices(tuple(name for name in STRATEGIES if name != negatives)).check(f"a strategy in {option}", strategy)
        Range(0, is_open=True).check(f"the share of {strategy!r} in {option}", share)
    # the rest is the share of `negatives`
    Range(0, 1, is_below=True).check(f"the sum of the shares in {option}", sum(shares.values()))


def contrast(
    queries: Float[Tensor, "K B T D"],
    latents: Float[Tensor, "B T D"],
    *,
    strategy: str = "mixed",
    num_latents: Int[Tensor, " B"] | None = None,
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
        num_latents: number of latents of each sequence that are signal; further latents are padding. None: all.
        sequence_id: sequences that may overlap share an id; None: all distinct.
        group_id: the speaker of each sequence, -1 where unknown.
        is_known: True for a known latent; unknown latents are treated as padding. None: all are known.
        steps: the step k of each of the K queries, in increasing order, to which `skip_steps` is added; None: 1..K.
        generator: source of the draws.
        options: options of `Contrastive`.

    Raises:
        ValueError: if a tensor has a wrong dtype or shape, `steps` are not K increasing numbers of at least 1,
            `num_latents` counts more latents than there are, or a batch has no row, or a row without a negative.
    """
    check_tensor("queries", queries, "floats", ("K", "B", "T", "D"))
    check_tensor("latents", latents, "floats", tuple(queries.shape[1:]))
    check_precision(queries=queries, latents=latents)
    if steps is not None and len(check_steps("steps", steps)) != len(queries):
        raise ValueError(f"steps={list(steps)} are {len(steps)} steps for {len(queries)} queries: give one per query")
    output = Output(latents, latents, {"": queries}, None, None, None if steps is None else tuple(steps))
    part = Contrastive(strategy, **options)
    return part(output, part.sequences(output, num_latents, sequence_id, group_id, is_known), generator)
