"""The scores of a batch of sequences, step by step, for any estimator: the rows of `contrast`.

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
from cpc.losses.candidate_sets import Sequences, candidate_set_of


class ScoredRows(NamedTuple):
    """The rows of one step in one sequence.

    Attributes:
        scores: `[M, N]`, with every latent of the batch.
        positives: `[M]`, the column of each row's positive.
        candidates: `[M, N]`, the columns that each row is compared with.
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
    sequences: Sequences,
    *,
    strategy: str,
    num_negatives: int | None = None,
    skip_steps: int = 0,
    with_baseline: bool = False,
    generator: torch.Generator | None = None,
) -> Iterator[tuple[int, ScoredRows]]:
    """The place of a step and the scores of its rows in one sequence, one sequence after the other.

    Rows and candidates are those that `cpc.losses.contrast` plans. Drawn negatives have the same distribution but are
    not the same draws, and each counts once however often it is drawn: distinct draws are independent where the pool
    is, so that lower bounds hold for any number of draws. Each step draws for itself. One sequence's scores are there
    at a time: T x (B T) numbers.

    Args:
        queries: W_k c_t, steps first.
        latents: z.
        sequences: lengths and identities.
        strategy: where negatives come from.
        num_negatives: draws per row; None: all candidates.
        skip_steps: the first step is k = skip_steps + 1.
        with_baseline: keep half of the candidates' sequences for a baseline, and draw from the others alone.
        generator: source of the draws.

    Raises:
        ValueError: as `contrast`, or if a baseline would have the candidates of fewer than two sequences.
    """
    num_steps, num_sequences, num_latents, _ = queries.shape
    candidate_set = candidate_set_of(strategy, sequences, num_latents, num_steps, skip_steps)
    assert candidate_set.query is not None
    pool, device = candidate_set.pool, latents.device
    kept = torch.zeros_like(pool)
    if with_baseline:
        kept, pool = split_by_sequence(pool, repeat(sequences.sequence_id, "b -> (b t)", t=num_latents))
    columns = rearrange(latents, "b t d -> (b t) d").double()
    flat = rearrange(queries, "k b t d -> (b t k) d")
    for place in range(num_steps):
        for b in range(num_sequences):
            row_queries = ((candidate_set.step == place) & (candidate_set.sequence == b)).nonzero()[:, 0]
            if len(row_queries) == 0:
                continue
            positives = candidate_set.positives[row_queries]
            scores = flat[candidate_set.query[row_queries].to(device)].double() @ columns.T
            candidates, baseline = (repeat(each[b], "n -> m n", m=len(row_queries)) for each in (pool, kept))
            if num_negatives is not None:
                drawn = draw_negatives(pool, torch.full_like(positives, b), positives, num_negatives, generator)
                candidates = torch.zeros_like(candidates).scatter(1, drawn, True)
            is_positive = torch.zeros_like(candidates).scatter(1, rearrange(positives, "m -> m 1"), True)
            met = (each.to(device) for each in (positives, candidates, baseline & ~is_positive))
            yield place, ScoredRows(scores, *met)


def split_by_sequence(
    pool: Bool[Tensor, "B N"], sequence_id: Int[Tensor, " N"]
) -> tuple[Bool[Tensor, "B N"], Bool[Tensor, "B N"]]:
    """Part each row's candidates into those for a baseline and those to be read, whole sequences to either side.

    Latents of one sequence depend on each other, and negatives drawn from one pool meet the same latents: only halves
    without a sequence in common, parted before anything is drawn, make the baseline independent of what it divides.
    With an odd number of sequences the baseline has one less.

    Args:
        pool: candidates of each row.
        sequence_id: whose each candidate is; windows of one file share an id.

    Raises:
        ValueError: if a row's candidates are of fewer than two sequences.
    """
    first = torch.zeros_like(pool)
    for row, of_row in enumerate(pool):
        ids = sequence_id[of_row].unique()
        if len(ids) < 2:
            raise ValueError(
                f"a baseline takes half of the sequences that candidates come from, here {len(ids)}: raise "
                "data.batch_size, so that two others are in each batch, or choose estimators without a baseline"
            )
        first[row] = of_row & torch.isin(sequence_id, ids[: len(ids) // 2])
    return first, pool & ~first


def mean_baseline(scores: Float[Tensor, "M N"], columns: Bool[Tensor, "M N"]) -> Float[Tensor, " M"]:
    """Log of the mean of exp s over some columns of each row; the row's positive should not be among them.

    For a critic that does not know its rows' constants, as one trained by InfoNCE does not. TUBA and I_alpha with this
    baseline stay lower bounds if the candidates that they read are independent of these.
    """
    return scores.masked_fill(~columns, -math.inf).logsumexp(1) - columns.sum(1).to(scores.dtype).log()
