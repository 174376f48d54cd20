"""Uniform draws of negatives from each row's own set.

B sequences, M rows (queries), N candidates, R draws per row.
"""

import torch
from einops import rearrange
from jaxtyping import Bool, Int
from torch import Tensor


def draw_negatives(
    pool: Bool[Tensor, "B N"],
    query_sequence: Int[Tensor, " M"],
    positives: Int[Tensor, " M"] | None,
    num_negatives: int,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "M R"]:
    """Draw `num_negatives` candidates per row, uniformly and with replacement, never the row's positive.

    The r-th negative of sequence b is the r-th True of `pool[b]`, where the positive's own place is skipped by adding
    one to every draw at or behind it: the exclusion is exact, no draw is rejected.

    Args:
        pool: candidates that the queries of each sequence may meet.
        query_sequence: the row of `pool` that each query draws from.
        positives: index of each row's positive among the N candidates, drawn never, whether it is in the pool or not;
            None excludes nothing.
        num_negatives: R.
        generator: source of the draws, on the CPU, so that the model's own generator is left alone.

    Raises:
        ValueError: if a row has no candidate to draw.
    """
    members = torch.argsort(~pool, dim=1, stable=True)  # [B, N]: the pool's candidates first, in order
    num_eligible = pool.sum(1)[query_sequence]  # [M]
    if positives is not None:
        positive_in_pool = pool[query_sequence, positives]
        num_eligible = num_eligible - positive_in_pool.long()
    if bool((num_eligible < 1).any()):
        raise ValueError(f"{int((num_eligible < 1).sum())} of {len(query_sequence)} rows have no negative to draw")

    uniform = torch.rand(len(query_sequence), num_negatives, generator=generator, dtype=torch.float64)
    draws = (uniform.to(pool.device) * rearrange(num_eligible, "m -> m 1")).long()
    if positives is not None:
        place = (pool.cumsum(1) - 1)[query_sequence, positives]  # [M]: where in `members` the positive stands
        draws += rearrange(positive_in_pool, "m -> m 1") & (draws >= rearrange(place, "m -> m 1"))
    return members[rearrange(query_sequence, "m -> m 1"), draws]
