"""Which rows meet which candidates: what a strategy shuts out is not scored, as far as it comes in blocks.

M queries (rows), N candidates, B sequences, R drawn negatives; m and n count a block's.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

# Gathering a block's vectors costs about a tenth of its three products.
_WORTHWHILE_SHARE = 0.9


class Block(NamedTuple):
    """Rows and the candidates that they meet.

    Attributes:
        rows: `[m]` numbers of rows; None: all of them, in order.
        columns: `[n]` indices of candidates; None: all of them, in order.
        positives: `[m]` place of each row's positive among the columns.
        pool: `[B, n]` the columns that each sequence's rows may meet besides their positives; None: all.
        sequence: `[m]` the row of `pool` that belongs to each row.
        negatives: `[m, R]` places of drawn negatives among the columns; None: every column of the pool.
    """

    rows: Tensor | None
    columns: Tensor | None
    positives: Tensor
    pool: Tensor | None
    sequence: Tensor
    negatives: Tensor | None


def blocks(
    pool: Bool[Tensor, "B N"],
    allowed: Bool[Tensor, "B B"] | None,
    query_sequence: Int[Tensor, " M"],
    candidate_sequence: Int[Tensor, " N"] | None,
    positives: Int[Tensor, " M"],
    negatives: Int[Tensor, "M R"] | None,
) -> list[Block]:
    """Part the score matrix into blocks that hold every positive and every candidate of their rows' pools.

    Sequences that meet the latents of the same sequences, their own positives' included, share a block. Where that
    saves next to nothing there is one block with everything.
    """
    whole = Block(None, None, positives, None if bool(pool.all()) else pool, query_sequence, negatives)
    if whole.pool is None or allowed is None or candidate_sequence is None:
        return [whole]
    meets = allowed.clone()
    meets[query_sequence, candidate_sequence[positives]] = True
    pattern = torch.unique(meets, dim=0, return_inverse=True)[1]
    parts = [
        _block(pool, pattern == p, query_sequence, positives, negatives)
        for p in torch.unique(pattern[query_sequence]).tolist()
    ]
    num_scores = sum(len(part.positives) * part.columns.numel() for part in parts if part.columns is not None)
    return parts if num_scores < _WORTHWHILE_SHARE * len(positives) * pool.shape[1] else [whole]


def only_met(vectors: Float[Tensor, "*N D"], is_met: Callable[[], Bool[Tensor, "..."]]) -> Float[Tensor, "*N D"]:
    """Zeros for the vectors that no row meets, where any of all is not finite; they get gradients of 0.

    Padding may hold anything, and its slope of 0 times nan is nan. What a row meets stays as it is.
    """
    if bool(vectors.detach().sum().isfinite()):  # one pass; a sum that overflows costs no more than the next line
        return vectors
    return vectors.where(rearrange(is_met(), "... n -> ... n 1"), 0)


def _block(pool: Tensor, members: Tensor, query_sequence: Tensor, positives: Tensor, negatives: Tensor | None) -> Block:
    """The block of the sequences marked as `members` `[B]`."""
    rows = members[query_sequence].nonzero()[:, 0]
    is_column = pool[members].any(0)
    is_column[positives[rows]] = True
    if negatives is not None:
        is_column[negatives[rows]] = True  # a caller's own negatives may lie outside the pool
    columns = is_column.nonzero()[:, 0]
    place = is_column.cumsum(0) - 1
    block_pool = pool[:, columns]
    return Block(
        rows,
        columns,
        place[positives[rows]],
        None if bool(block_pool[members].all()) else block_pool,
        query_sequence[rows],
        None if negatives is None else place[negatives[rows]],
    )
