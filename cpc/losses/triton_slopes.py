"""`cpc.losses.slopes.against_all` as one Triton kernel for a GPU: a tile of scores is read twice and written once.

Plain torch passes over the tile about ten times. The matrix products around it stay the vendor's.

M rows, N candidates.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 2048


@triton.jit
def _against_all(
    scores_ptr: tl.tensor,
    positive_ptr: tl.tensor,
    pool_ptr: tl.tensor,
    sequence_ptr: tl.tensor,
    log_odds_ptr: tl.tensor,
    accuracy_ptr: tl.tensor,
    num_columns: tl.tensor,
    row_stride: tl.tensor,
    smallest: tl.tensor,
    lowest: tl.tensor,
    has_pool: tl.constexpr,
    block: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    scores_ptr += row.to(tl.int64) * row_stride
    positive = tl.load(positive_ptr + row)
    positive_score = tl.load(scores_ptr + positive)
    if has_pool:
        pool_ptr += tl.load(sequence_ptr + row).to(tl.int64) * num_columns

    highest = tl.zeros((), tl.float32) - float("inf")  # of the negatives
    total = tl.zeros((), tl.float32)
    num_ties = tl.zeros((), tl.int32)
    for start in range(0, num_columns, block):
        column = start + tl.arange(0, block)
        is_negative = (column < num_columns) & (column != positive)
        if has_pool:
            is_negative &= tl.load(pool_ptr + column, mask=column < num_columns, other=0) != 0
        score = tl.load(scores_ptr + column, mask=is_negative, other=-float("inf"))
        num_ties += tl.sum((score == positive_score).to(tl.int32), 0)
        new_highest = tl.maximum(highest, tl.max(score, 0))
        finite = tl.maximum(new_highest, lowest)  # as long as there was no negative: no inf - inf
        total = total * tl.exp(highest - finite) + tl.sum(tl.exp(score - finite), 0)
        highest = new_highest
    log_odds = (highest - positive_score) + tl.log(total)
    tl.store(log_odds_ptr + row, tl.where(positive_score == float("inf"), float("nan"), log_odds))
    is_tied = highest == positive_score
    shared = 1.0 / (1.0 + num_ties.to(tl.float32))
    tl.store(accuracy_ptr + row, tl.where(highest < positive_score, 1.0, tl.where(is_tied, shared, 0.0)))

    for start in range(0, num_columns, block):
        column = start + tl.arange(0, block)
        is_column = column < num_columns
        is_negative = is_column & (column != positive)
        if has_pool:
            is_negative &= tl.load(pool_ptr + column, mask=is_column, other=0) != 0
        score = tl.load(scores_ptr + column, mask=is_negative, other=-float("inf"))
        share = tl.exp(score - highest) / total
        share = tl.where(share < smallest, 0.0, share)
        tl.store(scores_ptr + column, tl.where(column == positive, -1.0, share), mask=is_column)


def against_all(
    scores: Tensor, positive: Tensor, pool: Tensor | None, sequence: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The same as `cpc.losses.slopes.against_all`, for float32 scores whose rows lie in one piece each."""
    num_rows, num_columns = scores.shape
    log_odds, accuracy = scores.new_empty(num_rows), scores.new_empty(num_rows)
    _against_all[(num_rows,)](
        scores,
        positive,
        scores if pool is None else pool.view(torch.uint8),
        positive if pool is None else sequence,
        log_odds,
        accuracy,
        num_columns,
        scores.stride(0),
        torch.finfo(torch.float32).tiny ** 0.35,  # as in `cpc.losses.slopes`
        torch.finfo(torch.float32).min,
        has_pool=pool is not None,
        block=min(_BLOCK, triton.next_power_of_2(num_columns)),
    )
    return log_odds, accuracy, scores
