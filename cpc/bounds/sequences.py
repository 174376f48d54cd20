"""Score matrices of a batch of sequences: one per step and sequence, for any estimator.

K steps, B sequences, T latents, D latent dim, M rows, N = B T columns.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cpc.candidates import draw_negatives
from cpc.config.argument_rules import Range
from cpc.losses.definition import CandidateSet


class ScoredRows(NamedTuple):
    """The rows of one step in one sequence."""

    scores: Tensor  # `[M, N]`, scores of every latent of the batch
    positives: Tensor  # `[M]`, column of the positive of each row
    candidates: Tensor  # `[M, N]`, mask of the columns that each row is compared with
    baseline: Tensor  # `[M, N]`, mask of the columns of the baseline; empty without a baseline

    @property
    def num_candidates(self) -> int:
        """The number of candidates of all rows, positives included."""
        is_candidate = self.candidates.scatter(1, rearrange(self.positives, "m -> m 1"), True)
        return int(is_candidate.sum())


def scored_rows(
    queries: Float[Tensor, "Q D"],
    latents: Float[Tensor, "N D"],
    rows: CandidateSet,
    sequence_id: Int[Tensor, " B"] | None = None,
    *,
    num_negatives: int | None = None,
    generator: torch.Generator | None = None,
) -> Iterator[tuple[int, ScoredRows]]:
    """Yield the index of a step and the scores of its rows in one sequence, for all steps and sequences.

    Sampled negatives follow the same distribution as those of the loss, but are not the same sample. A negative counts
    once even if it is sampled repeatedly. If the latents of the pool are independent, so are distinct negatives, and
    lower bounds hold for any number of negatives. Each step samples separately. Only the scores of one sequence, of L
    latents, are in memory at a time: L x N numbers for each step.

    `latents` are z of sequences of one length; `rows` are on the host (`cpc.losses.candidate_sets.plan`). With
    `sequence_id`, half of the sequences are kept for a baseline, and only the other half supplies candidates.
    """
    assert rows.query_index is not None
    pool, device = rows.candidate_mask, latents.device
    kept = torch.zeros_like(pool)
    if sequence_id is not None:
        kept, pool = split_by_sequence(pool, sequence_id.repeat_interleave(len(latents) // len(sequence_id)))
    columns = latents.double()
    num_steps, num_sequences = rows.num_steps, len(rows.candidate_mask)
    for step in range(num_steps):
        for b in range(num_sequences):
            chosen = ((rows.step == step) & (rows.sequence == b)).nonzero()[:, 0]
            if len(chosen) == 0:
                continue
            positives = rows.positive_index[chosen]
            scores = queries[rows.query_index[chosen].to(device)].double() @ columns.T
            candidates, baseline = (repeat(mask[b], "n -> m n", m=len(chosen)) for mask in (pool, kept))
            if num_negatives is not None:
                negatives = draw_negatives(pool, torch.full_like(positives, b), positives, num_negatives, generator)
                candidates = torch.zeros_like(candidates).scatter(1, negatives, True)
            is_positive = torch.zeros_like(candidates).scatter(1, rearrange(positives, "m -> m 1"), True)
            masks = (candidates.to(device), (baseline & ~is_positive).to(device))
            yield step, ScoredRows(scores, positives.to(device), *masks)


def split_by_sequence(
    pool: Bool[Tensor, "B N"], sequence_id: Int[Tensor, " N"]
) -> tuple[Bool[Tensor, "B N"], Bool[Tensor, "B N"]]:
    """Split the candidates of each row by sequence into candidates of a baseline and remaining candidates.

    Latents of one sequence depend on each other, and negatives sampled from one pool share latents. The baseline is
    independent of the scores that it divides only if the halves have no sequence in common and are split before
    sampling. With an odd number of sequences the baseline has one sequence less. Windows of one file share an id.
    """
    baseline = torch.zeros_like(pool)
    for row, candidates in enumerate(pool):
        ids = sequence_id[candidates].unique()
        Range(2).check("a baseline needs more of `batch_size`: the number of other sequences", len(ids))
        baseline[row] = candidates & torch.isin(sequence_id, ids[: len(ids) // 2])
    return baseline, pool & ~baseline


def mean_baseline(scores: Float[Tensor, "M N"], columns: Bool[Tensor, "M N"]) -> Float[Tensor, " M"]:
    """Return the log of the mean of exp s over some columns of each row, which should not include the positive.

    Use it for a critic with unknown additive constants per row, such as one trained by InfoNCE. TUBA and I_alpha with
    this baseline are lower bounds if their candidates are independent of these columns.
    """
    return scores.masked_fill(~columns, -math.inf).logsumexp(1) - columns.sum(1).to(scores.dtype).log()
