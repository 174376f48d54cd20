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
from cpc.candidates import allowed_matrix, check_num_valid, draw_negatives
from cpc.losses.contrast import check_rows


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

    Rows and candidates are those of `cpc.losses.contrast`, with the same arguments. Drawn negatives are of the same
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
    device = latents.device
    if num_valid is None:
        num_valid = torch.full((num_sequences,), num_latents, device=device)
    check_num_valid(num_valid, num_latents)
    if sequence_id is None:
        sequence_id = torch.arange(num_sequences, device=device)
    check_rows(strategy, num_valid, sequence_id, group_id, skip_steps)
    is_valid = torch.arange(num_latents, device=device) < rearrange(num_valid, "b -> b 1")
    pool = repeat(allowed_matrix(strategy, sequence_id, group_id), "q b -> q (b t)", t=num_latents)
    pool = pool & rearrange(is_valid, "b t -> (b t)")
    kept = torch.zeros_like(pool)
    if with_baseline:
        kept, pool = split_by_sequence(pool, repeat(sequence_id, "b -> (b t)", t=num_latents))
    columns = rearrange(latents, "b t d -> (b t) d").double()
    for place in range(num_steps):
        ahead = skip_steps + place + 1
        for b in range(num_sequences):
            num_rows = int(num_valid[b]) - ahead
            if num_rows < 1:
                continue
            positives = b * num_latents + ahead + torch.arange(num_rows, device=device)
            scores = queries[place, b, :num_rows].double() @ columns.T
            candidates, baseline = (repeat(each[b], "n -> m n", m=num_rows) for each in (pool, kept))
            if num_negatives is not None:
                drawn = draw_negatives(pool, torch.full_like(positives, b), positives, num_negatives, generator)
                candidates = torch.zeros_like(candidates).scatter(1, drawn, True)
            is_positive = torch.zeros_like(candidates).scatter(1, rearrange(positives, "m -> m 1"), True)
            yield place, ScoredRows(scores, positives, candidates, baseline & ~is_positive)
