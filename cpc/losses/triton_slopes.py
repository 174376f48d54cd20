"""`cpc.losses.slopes.against_all` as one Triton kernel for a GPU: a tile of scores is read twice and written once.

Plain torch passes over the tile about ten times. The matrix products around it stay the vendor's.

M rows, N candidates.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 2048


@triton.jit
def _against_all(
    scores_ptr: Any,
    positive_ptr: Any,
    pool_ptr: Any,
    sequence_ptr: Any,
    loss_ptr: Any,
    accuracy_ptr: Any,
    num_columns: Any,
    row_stride: Any,
    smallest: Any,
    has_pool: tl.constexpr,
    block: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    scores_ptr += row.to(tl.int64) * row_stride
    positive = tl.load(positive_ptr + row)
    positive_score = tl.load(scores_ptr + positive)
    if has_pool:
        pool_ptr += tl.load(sequence_ptr + row).to(tl.int64) * num_columns

    highest = positive_score
    total = tl.zeros((), tl.float32) + 1.0  # the positive's own term
    best_negative = positive_score * 0 - float("inf")
    num_ties = tl.zeros((), tl.int32)
    for start in range(0, num_columns, block):
        column = start + tl.arange(0, block)
        is_negative = (column < num_columns) & (column != positive)
        if has_pool:
            is_negative &= tl.load(pool_ptr + column, mask=column < num_columns, other=0) != 0
        score = tl.load(scores_ptr + column, mask=is_negative, other=-float("inf"))
        best = tl.max(score, 0)
        best_negative = tl.maximum(best_negative, best)
        num_ties += tl.sum((score == positive_score).to(tl.int32), 0)
        new_highest = tl.maximum(highest, best)
        total = total * tl.exp(highest - new_highest) + tl.sum(tl.exp(score - new_highest), 0)
        highest = new_highest
    tl.store(loss_ptr + row, tl.log(total) + highest - positive_score)
    is_tied = best_negative == positive_score
    shared = 1.0 / (1.0 + num_ties.to(tl.float32))
    tl.store(accuracy_ptr + row, tl.where(best_negative < positive_score, 1.0, tl.where(is_tied, shared, 0.0)))

    for start in range(0, num_columns, block):
        column = start + tl.arange(0, block)
        is_column = column < num_columns
        is_positive = column == positive
        is_candidate = is_column
        if has_pool:
            is_candidate &= is_positive | (tl.load(pool_ptr + column, mask=is_column, other=0) != 0)
        score = tl.load(scores_ptr + column, mask=is_candidate, other=-float("inf"))
        probability = tl.exp(score - highest) / total
        probability = tl.where(probability < smallest, 0.0, probability)
        tl.store(scores_ptr + column, probability - is_positive.to(tl.float32), mask=is_column)


def against_all(
    scores: Tensor, positive: Tensor, pool: Tensor | None, sequence: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The same as `cpc.losses.slopes.against_all`, for float32 scores whose rows lie in one piece each."""
    num_rows, num_columns = scores.shape
    loss, accuracy = scores.new_empty(num_rows), scores.new_empty(num_rows)
    _against_all[(num_rows,)](
        scores,
        positive,
        scores if pool is None else pool.view(torch.uint8),
        positive if pool is None else sequence,
        loss,
        accuracy,
        num_columns,
        scores.stride(0),
        torch.finfo(torch.float32).tiny ** 0.7,
        has_pool=pool is not None,
        block=min(_BLOCK, triton.next_power_of_2(num_columns)),
    )
    return loss, accuracy, scores
