"""`loss_and_gradients` of `score_gradients.py` as one Triton kernel, for tiles of scores on a GPU.

One program of the kernel computes one row. It reads the row's scores twice: for the loss and the accuracy, and for the
gradients, which it writes over the scores. Sums are float32 whatever the dtype of the scores.

m rows of a tile, N candidates, T targets, B sequences.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor

from cpc.losses.engine.score_gradients import LossAndGradients, ScoreCorrections

BLOCK = 4096  # scores that a program reads at once


def loss_and_gradients(
    form: str,
    scores: Float[Tensor, "m N"],
    corrections: ScoreCorrections,
    targets: Float[Tensor, "m T"] | None = None,
    own: Int[Tensor, "m T"] | None = None,
    num_times: Bool[Tensor, "B N"] | Integer[Tensor, "B N"] | None = None,
    sequence: Int[Tensor, " m"] | None = None,
    bias: Float[Tensor, " N"] | None = None,
) -> tuple[Float[Tensor, " m"], LossAndGradients]:
    """Return what `score_gradients.loss_and_gradients` returns. The gradients are written over the scores.

    Rows of the scores may be strided; targets that are among the candidates (`own`) are not given as scores.
    """
    num_rows, num_candidates = scores.shape
    log_count, log_count_targets, weight, hits, width = corrections
    given = own if targets is None else targets
    assert given is not None
    num_targets = given.shape[1]
    loss, accuracy = (scores.new_empty(num_rows, dtype=torch.float32) for _ in range(2))
    target_grads = torch.empty_like(given, dtype=torch.float32, memory_format=torch.contiguous_format)
    if num_rows == 0:
        return accuracy, LossAndGradients(loss[:, None], loss[:, None], scores, target_grads)
    log_count_stride = 0 if log_count is None or len(log_count) == 1 else num_candidates  # 0: all rows share it
    block = min(BLOCK, max(16, triton.next_power_of_2(num_candidates)))
    with torch.cuda.device_of(scores):  # Triton launches on the current device
        inputs = (own, targets, log_count_targets, width, num_times, sequence, bias, log_count, weight, hits)
        _row[(num_rows,)](
            *(scores, loss, accuracy, target_grads),
            *map(_rows, inputs),
            *(num_candidates, num_targets, scores.stride(0), log_count_stride),
            form=form,
            HAS_COUNTS=num_times is not None and num_times.dtype != torch.bool,
            NUM_TARGETS=triton.next_power_of_2(num_targets),
            BLOCK=block,
            IS_WHOLE=num_candidates % block == 0,
            num_warps=8,
        )
    factor = torch.ones_like(loss)[:, None]
    return accuracy, LossAndGradients(loss[:, None], factor, scores, target_grads)


def _rows(tensor: Tensor | None) -> Tensor | None:
    """Return a tensor in the layout that the kernel reads: contiguous, with a byte for each boolean."""
    if tensor is None:
        return None
    tensor = tensor.contiguous()
    return tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor


def _jit(function: Callable[..., Any]) -> Any:
    return triton.jit(inspect.unwrap(function))  # tests wrap functions to check types, and Triton reads their source


@_jit
def _log1p(x):  # type: ignore[no-untyped-def]
    """Return log(1 + x) with all digits of a small x (Kahan)."""
    u = 1 + x
    return tl.where(u == 1, x, tl.log(u) * (x / tl.where(u == 1, 1, u - 1)))


@_jit
def _softplus(x):  # type: ignore[no-untyped-def]
    return tl.maximum(x, 0) + _log1p(tl.exp(-tl.abs(x)))


@_jit
def _sigmoid(x):  # type: ignore[no-untyped-def]
    e = tl.exp(-tl.abs(x))
    return tl.where(x > 0, 1, e) / (1 + e)


@_jit
def _candidates(  # type: ignore[no-untyped-def]
    columns, scores, num_times, bias, log_count, term_weight, num, HAS_COUNTS: tl.constexpr, IS_WHOLE: tl.constexpr
):
    """Return scores F and G of the other candidates, -inf for what is no candidate; counts and weights, or 1.

    All pointers are those of the row.
    """
    there = None if IS_WHOLE else columns < num
    zero = None if IS_WHOLE else 0
    x = tl.load(scores + columns, mask=there, other=None if IS_WHOLE else -float("inf")).to(tl.float32)
    times = 1.0
    if bias is not None:
        x += tl.load(bias + columns, mask=there, other=zero)
    if num_times is not None:
        given = tl.load(num_times + columns, mask=there, other=zero)
        x = tl.where(given > 0, x, -float("inf"))
        if HAS_COUNTS:
            times = given.to(tl.float32)
    g = x
    if log_count is not None:
        count = tl.load(log_count + columns, mask=there, other=zero)
        x = tl.where(count == float("inf"), -float("inf"), x)
        g = x - count
    weight = times
    if term_weight is not None:
        weight *= tl.load(term_weight + columns, mask=there, other=zero)
    return x, g, times, weight


@_jit
def _row(  # type: ignore[no-untyped-def]
    scores,
    loss,
    accuracy,
    target_grads,
    own,
    targets,
    log_count_targets,
    tie_width,
    num_times,
    sequence,
    bias,
    log_count,
    term_weight,
    hits,
    num,
    num_targets,
    scores_stride,
    log_count_stride,
    form: tl.constexpr,
    HAS_COUNTS: tl.constexpr,
    NUM_TARGETS: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_WHOLE: tl.constexpr,
):
    """Compute one row: its loss, its accuracy, and the gradients of its scores."""
    inf = float("inf")
    row = tl.program_id(0).to(tl.int64)
    scores += row * scores_stride
    times_row = row
    if sequence is not None:
        times_row = tl.load(sequence + row).to(tl.int64)
    if num_times is not None:
        num_times += times_row * num
    if hits is not None:
        hits += row * num
    if log_count is not None:
        log_count += row * log_count_stride
    if term_weight is not None:
        term_weight += row * log_count_stride  # of the same shape

    # The targets, as a vector of a power of two.
    t = tl.arange(0, NUM_TARGETS)
    has_target = t < num_targets
    target_grads += row * num_targets
    if own is not None:
        own += row * num_targets
        place = tl.load(own + t, mask=has_target, other=0)
        target = tl.load(scores + place, mask=has_target, other=-inf).to(tl.float32)
        if bias is not None:
            target += tl.load(bias + place, mask=has_target, other=0.0)
        tl.debug_barrier()  # all warps have read the targets, which are no candidates below
        tl.store(scores + place, tl.full([NUM_TARGETS], -inf, scores.dtype.element_ty), mask=has_target)
        tl.debug_barrier()
    else:
        target = tl.load(targets + row * num_targets + t, mask=has_target, other=-inf).to(tl.float32)
    if log_count_targets is not None:
        target_count = tl.load(log_count_targets + row * num_targets + t, mask=has_target, other=inf)
        target = tl.where(target_count == inf, -inf, target)
    best_target = tl.max(target, 0)
    width = tl.load(tie_width + row).to(tl.float32)
    if scores.dtype.element_ty == tl.bfloat16:
        width += tl.abs(best_target) / 128  # equal scores may be rounded to neighbours

    # First pass: the highest other score, ties, and the sum of the form.
    highest = -inf
    num_ties = 0.0
    best = -inf
    total = 0.0
    for start in range(0, num, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x, g, times, weight = _candidates(
            columns, scores, num_times, bias, log_count, term_weight, num, HAS_COUNTS, IS_WHOLE
        )
        if hits is not None:
            is_hit = tl.load(hits + columns, mask=columns < num, other=0)
            x = tl.where(is_hit > 0, -inf, x)
        block_highest = tl.max(x, 0)
        highest = tl.maximum(highest, block_highest)
        # A higher score makes the row wrong, whatever its ties.
        if (block_highest >= best_target - width) & (block_highest <= best_target + width):
            num_ties += tl.sum(tl.where((x >= best_target - width) & (columns < num), times, 0.0), 0)
        if form == "logistic":
            total += tl.sum(weight * _softplus(g), 0)
        else:
            if form == "softmax_of_odds":
                g = -_softplus(-g)
            before = best
            best = tl.maximum(best, tl.max(g, 0))
            finite = tl.where(best == -inf, 0.0, best)
            total = total * tl.exp(before - finite) + tl.sum(times * tl.exp(g - finite), 0)
    is_right = highest <= best_target + width

    # The loss, and the gradients of the targets. See `softmax` and `logistic` in score_gradients.py.
    if log_count_targets is not None:
        target -= tl.where(target_count == inf, 0.0, target_count)
    is_target = target != -inf
    scale = 1.0
    finite = 0.0
    if form == "logistic":
        row_loss = total + tl.sum(tl.where(is_target, _softplus(-target), 0.0), 0)
        target_grad = tl.where(is_target, -_sigmoid(-target), 0.0)
    else:
        odds = target
        if form == "softmax_of_odds":
            target = -_softplus(-target)
        best_target = tl.max(target, 0)
        shifted = target - best_target  # large scores cancel before anything is added
        exponentials = tl.where(is_target, tl.exp(shifted), 0.0)
        wanted = tl.where(is_target, 1.0, 0.0) / tl.sum(tl.where(is_target, 1.0, 0.0), 0)
        total_target = tl.sum(exponentials, 0)
        mean_target = tl.sum(tl.where(is_target, shifted, 0.0) * wanted, 0)
        some_total = tl.where(total == 0, 1.0, total)  # no logarithm of the 0 of a row without another candidate
        log_odds = (best - best_target) + tl.log(some_total) - tl.log(total_target)
        row_loss = _softplus(log_odds) + (tl.log(total_target) - mean_target)
        row_loss = tl.where(best_target == inf, float("nan"), row_loss)
        miss = _sigmoid(log_odds)  # 1 - p
        share = exponentials / total_target
        target_grad = (share - wanted) - share * miss
        if form == "softmax_of_odds":
            target_grad *= _sigmoid(-odds)
        scale = miss / some_total
        finite = tl.where(best == -inf, 0.0, best)
    tl.store(loss + row, row_loss)
    is_right = is_right & (row_loss == row_loss)  # a maximum ignores nan, a sum does not
    tl.store(accuracy + row, tl.where(is_right, 1 / (1 + num_ties), 0.0))
    tl.store(target_grads + t, target_grad, mask=has_target)

    # Second pass: gradients of the scores, in their place.
    for start in range(0, num, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x, g, times, weight = _candidates(
            columns, scores, num_times, bias, log_count, term_weight, num, HAS_COUNTS, IS_WHOLE
        )
        if form == "logistic":
            gradient = weight * _sigmoid(g)
        elif form == "softmax_of_odds":
            gradient = times * tl.exp(-_softplus(-g) - finite) * scale * _sigmoid(-g)
        else:
            gradient = times * tl.exp(g - finite) * scale
        there = None if IS_WHOLE else columns < num
        tl.store(scores + columns, gradient.to(scores.dtype.element_ty), mask=there)
    if own is not None:
        is_same = (place[:, None] == place[None, :]) & has_target[None, :]  # a missing target repeats another
        target_grad = tl.sum(tl.where(is_same, target_grad[None, :], 0.0), 1)
        tl.debug_barrier()  # the zeros of other warps come first
        tl.store(scores + place, target_grad.to(scores.dtype.element_ty), mask=has_target)
