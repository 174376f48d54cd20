"""Readings of a batch of sequences, step by step: the rows of `contrast`, for any estimator.

K steps, B sequences, T latents, D latent dim, M rows, N = B T columns.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor

from cpc.bounds.estimators import split_by_sequence
from cpc.candidates import draw_negatives
from cpc.losses.plan import Sequences, plan


class ScoredRows(NamedTuple):
    """The rows of one step in one sequence.

    Attributes:
        scores: `[M, N]`, with every latent of the batch.
        positives: `[M]`, the column of each row's positive.
        candidates: `[M, N]`, the columns that each row meets.
        baseline: `[M, N]`, columns kept for a baseline: none unless asked for.
    """

    scores: Tensor
    positives: Tensor
    candidates: Tensor
    baseline: Tensor

    @property
    def num_met(self) -> int:
        """Candidates, added up over rows, with each row's positive."""
        is_candidate = self.candidates.scatter(1, rearrange(self.positives, "m -> m 1"), True)
        return int(is_candidate.sum())


def scored_rows(
    queries: Float[Tensor, "K B T D"],
    latents: Float[Tensor, "B T D"],
    *,
    strategy: str,
    num_valid: Int[Tensor, " B"] | None = None,
    sequence_id: Int[Tensor, " B"] | None = None,
    group_id: Int[Tensor, " B"] | None = None,
    num_negatives: int | None = None,
    skip_steps: int = 0,
    with_baseline: bool = False,
    generator: torch.Generator | None = None,
) -> Iterator[tuple[int, ScoredRows]]:
    """The place of a step and the scores of its rows in one sequence, one sequence after the other.

    Rows and candidates are those that `cpc.losses.contrast` plans. Drawn negatives are of the same
    distribution, not the same draws, and each counts once however often it is drawn: distinct draws are independent
    where the pool is, so that lower bounds stay such for any number of draws. Each step draws for itself; that a model
    shares draws across steps makes no difference to any one step. One sequence's scores are there at a time: T x (B T)
    numbers.

    Args:
        queries: W_k c_t, steps first.
        latents: z.
        strategy: whose latents a sequence is compared with.
        num_valid: latents of each sequence that are signal; None: all.
        sequence_id: sequences that may overlap share an id; None: all distinct.
        group_id: the speaker of each sequence, -1 where unknown.
        num_negatives: draws per row; None: all candidates.
        skip_steps: the first step is k = skip_steps + 1.
        with_baseline: keep half of the candidates' sequences for a baseline, and draw from the others alone.
        generator: source of the draws.

    Raises:
        ValueError: as `contrast`, or if a baseline would have the candidates of fewer than two sequences.
    """
    num_steps, num_sequences, num_latents, _ = queries.shape
    sequences = Sequences.of((num_sequences, num_latents), num_valid, sequence_id, group_id)
    planned = plan(strategy, sequences, num_latents, num_steps, skip_steps)
    assert planned.query is not None
    pool, device = planned.pool, latents.device
    kept = torch.zeros_like(pool)
    if with_baseline:
        kept, pool = split_by_sequence(pool, repeat(sequences.sequence_id, "b -> (b t)", t=num_latents))
    columns = rearrange(latents, "b t d -> (b t) d").double()
    flat = rearrange(queries, "k b t d -> (b t k) d")
    for place in range(num_steps):
        for b in range(num_sequences):
            of_rows = ((planned.step == place) & (planned.sequence == b)).nonzero()[:, 0]
            if len(of_rows) == 0:
                continue
            positives = planned.positives[of_rows]
            scores = flat[planned.query[of_rows].to(device)].double() @ columns.T
            candidates, baseline = (repeat(each[b], "n -> m n", m=len(of_rows)) for each in (pool, kept))
            if num_negatives is not None:
                drawn = draw_negatives(pool, torch.full_like(positives, b), positives, num_negatives, generator)
                candidates = torch.zeros_like(candidates).scatter(1, drawn, True)
            is_positive = torch.zeros_like(candidates).scatter(1, rearrange(positives, "m -> m 1"), True)
            met = (each.to(device) for each in (positives, candidates, baseline & ~is_positive))
            yield place, ScoredRows(scores, *met)
