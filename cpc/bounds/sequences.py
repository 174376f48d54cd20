"""Readings of a batch of sequences, step by step: what `contrast` computes, for any estimator.

K steps, B sequences, T latents, D latent dim, M rows, R drawn negatives.
"""

from collections.abc import Iterator

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cpc.candidates import allowed_matrix, draw_negatives
from cpc.losses.contrast import check_rows

# scores [M, N], the column of each row's positive [M], and which columns each row meets [M, N]
ScoredRows = tuple[Float[Tensor, "M N"], Int[Tensor, " M"], Bool[Tensor, "M N"]]


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
    generator: torch.Generator | None = None,
) -> Iterator[tuple[int, ScoredRows]]:
    """The place of a step and the scores of its rows in one sequence, one sequence after the other.

    Rows, candidates and draws are those of `cpc.losses.contrast`, with the same arguments. One sequence's scores are
    there at a time: T x (B T) numbers.

    Raises:
        ValueError: if no sequence is longer than the first step, or the strategy leaves a row without negatives.
    """
    num_steps, num_sequences, num_latents, _ = queries.shape
    device = latents.device
    if num_valid is None:
        num_valid = torch.full((num_sequences,), num_latents, device=device)
    if sequence_id is None:
        sequence_id = torch.arange(num_sequences, device=device)
    check_rows(strategy, num_valid, sequence_id, group_id, skip_steps)
    is_valid = torch.arange(num_latents, device=device) < rearrange(num_valid, "b -> b 1")
    pool = repeat(allowed_matrix(strategy, sequence_id, group_id), "q b -> q (b t)", t=num_latents)
    pool = pool & rearrange(is_valid, "b t -> (b t)")
    candidates = rearrange(latents, "b t d -> (b t) d").double()
    for place in range(num_steps):
        ahead = skip_steps + place + 1
        for b in range(num_sequences):
            num_rows = int(num_valid[b]) - ahead
            if num_rows < 1:
                continue
            positives = b * num_latents + ahead + torch.arange(num_rows, device=device)
            scores = queries[place, b, :num_rows].double() @ candidates.T
            if num_negatives is None:
                yield place, (scores, positives, repeat(pool[b], "n -> m n", m=num_rows))
                continue
            of_row = torch.full_like(positives, b)
            drawn = draw_negatives(pool, of_row, positives, num_negatives, generator)
            chosen = scores.gather(1, torch.cat([rearrange(positives, "m -> m 1"), drawn], 1))
            yield place, (chosen, torch.zeros_like(positives), torch.ones_like(chosen, dtype=torch.bool))
