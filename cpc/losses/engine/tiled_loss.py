"""The mean loss of rows with all its gradients, computed in the forward pass, a tile of rows at a time.

The gradient of a mean of softmax or logistic losses is known as soon as the scores are. Computing it at once costs the
three matrix products that any implementation needs (scores, gradient of the queries, gradient of the candidates), and
only one tile of the M x N scores exists at a time.

M rows, N candidates, T targets, R drawn negatives, D latent dim.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from cpc.config.argument_rules import Choices
from cpc.losses.definition import CandidateSet
from cpc.losses.definition import info_nce_rows as info_nce_definition
from cpc.losses.engine.blocks import Block, layout_of
from cpc.losses.engine.score_gradients import ScoreCorrections, tie_width
from cpc.losses.engine.tiles import (
    ROUNDINGS,
    choose_tiles,
    has_kernel,
    loss_and_gradients,
    products,
    rounding_of,
    score_dtype,
)
from cpc.losses.output import RowLosses

_COMPUTE = Choices(("auto", *ROUNDINGS, "reference"))


def info_nce_rows(
    queries: Float[Tensor, "Q D"],
    candidates: Float[Tensor, "N D"],
    rows: CandidateSet,
    drawn: Int[Tensor, "M R"] | None = None,
    bias: Float[Tensor, " N"] | None = None,
    compute: str = "auto",
) -> RowLosses:
    """Return what `cpc.losses.definition.info_nce_rows` defines; no step waits for a GPU."""
    _COMPUTE.check("compute", compute)
    if compute == "reference":
        return info_nce_definition(queries, candidates, rows, drawn, bias)
    dtype = score_dtype(queries)
    if dtype == torch.float64:
        Choices(("auto", "float32")).check("for queries of float64, compute", compute)
    blocks, num_negatives, is_used = layout_of(rows)
    loss, loss_nats, accuracy = tiled_loss(
        queries,
        mask_unused(candidates.to(dtype), is_used),
        blocks,
        rows.weight.to(dtype),
        query_index=rows.query_index,
        drawn=drawn,
        bias=bias,
        compute=compute,
    )
    num_candidates = 1 + (num_negatives if drawn is None else torch.full_like(num_negatives, drawn.shape[1]))
    return RowLosses(loss, loss_nats, num_candidates, accuracy)


@torch.compiler.disable
def tiled_loss(
    queries: Tensor,
    candidates: Tensor,
    blocks: Sequence[Block],
    weight: Float[Tensor, " M"],
    *,
    form: str = "softmax",
    query_index: Tensor | None = None,
    drawn: Tensor | None = None,
    bias: Tensor | None = None,
    target_scores: Float[Tensor, "M T"] | None = None,
    corrections: ScoreCorrections | None = None,
    compute: str = "auto",
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the weighted mean, the row losses and the accuracies; only the mean carries gradients.

    Args:
        queries: `[Q, D]`; their dtype may be shorter than that of the candidates.
        candidates: `[N, D]`, or separate for each row, `[M, N, D]`. Scores and sums have their dtype.
        blocks: which rows are scored against which candidates.
        weight: weight of each row in the mean.
        form: a name in `cpc.losses.engine.score_gradients.FORMS`.
        query_index: `[M]`, index of each row's query; None: row m has query m.
        drawn: `[M, R]`, indices of drawn negatives among the candidates; None: all candidates.
        bias: added to the scores, `[N]` or `[M, N]`.
        target_scores: scores of targets that are not among the candidates.
        corrections: corrections of scores, with a width of ties if targets are not among the candidates.
        compute: see `cpc.losses.info_nce`.
    """
    inputs, dtype = (queries, candidates, bias, target_scores), candidates.dtype
    rounding = rounding_of(compute, queries.device.type, queries.dtype)
    queries_grad, candidates_grad, bias_grad, targets_grad = gradients = [
        # Gradients of float16 may exceed float16.
        each.new_zeros(each.shape, dtype=dtype if each.dtype == torch.float16 else each.dtype)
        if each is not None and each.requires_grad and torch.is_grad_enabled()
        else None
        for each in inputs
    ]
    corrections = ScoreCorrections() if corrections is None else corrections
    loss_nats, accuracy = torch.empty_like(weight), torch.empty_like(weight, dtype=torch.float32)
    with products(rounding, queries.device.type):
        if rounding == "bf16":
            candidates = candidates.bfloat16() if has_kernel(candidates) else candidates.bfloat16().to(dtype)
        for block in blocks:
            columns = block.columns
            block_candidates = candidates if columns is None else candidates[columns]
            block_bias = bias if bias is None or columns is None else bias[columns]
            block_grad = candidates_grad
            if candidates_grad is not None and columns is not None:
                block_grad = candidates_grad.new_zeros(block_candidates.shape)
            own = block.positives
            lengths = None if own is None else torch.linalg.vector_norm(block_candidates, dim=-1, dtype=dtype)
            num_rows = len(weight) if block.rows is None else len(block.rows)
            tiles = choose_tiles(*(block, num_rows, block_candidates, block_bias, block.columns_of(drawn), rounding))
            for start in range(0, num_rows, tiles.tile_rows):
                tile = slice(start, min(start + tiles.tile_rows, num_rows))
                rows = tile if block.rows is None else block.rows[tile]
                index = rows if query_index is None else query_index[rows]
                tile_queries = queries[index].to(dtype)
                if rounding == "bf16":
                    tile_queries = tile_queries.bfloat16().to(dtype)
                tile_corrections = corrections.select(rows)
                if own is not None and lengths is not None:
                    own_bias = None if block_bias is None else block_bias[own[tile]]
                    width = tie_width(tile_queries, lengths[own[tile]], own_bias)
                    tile_corrections = tile_corrections._replace(tie_width=width)
                targets = None if target_scores is None else target_scores[rows]
                scores = tiles.scores(tile_queries, tile)
                row_inputs = tiles.row_inputs(tile)
                accuracy[rows], found = loss_and_gradients(form, scores, tile_corrections, targets, *row_inputs)
                loss_nats[rows] = found.loss[:, 0]
                row_weight = rearrange(weight[rows], "m -> m 1") * found.factor
                if queries_grad is not None:
                    queries_grad[index] = (tiles.query_gradient(found.score_grads) * row_weight).to(queries_grad.dtype)
                if bias_grad is not None:
                    tiles.add_bias_gradient(found.score_grads, row_weight, bias_grad)
                if block_grad is not None:
                    tiles.add_candidate_gradient(found.score_grads, tile_queries * row_weight, block_grad)
                if targets_grad is not None:
                    targets_grad[rows] = found.target_grads * row_weight
            if candidates_grad is not None and block_grad is not None and columns is not None:
                candidates_grad.index_add_(0, columns, block_grad)
        loss = torch.dot(weight, loss_nats)
    return attach_gradients(loss, inputs, gradients), loss_nats, accuracy


def mask_unused(
    vectors: Float[Tensor, "*N D"], is_used: Bool[Tensor, "..."] | Callable[[], Bool[Tensor, "..."]] | None
) -> Float[Tensor, "*N D"]:
    """Set vectors that no row is scored against to zero if any vector is not finite; the others stay as they are.

    Padding may hold nan, and its score gradient of 0 times nan is nan. On a CPU values are checked first. On a GPU a
    check would make the host wait, so vectors are masked unless all are used (`is_used` is None). A function that
    returns the mask is called only if needed.
    """
    # If the sum overflows, only the pass below is wasted.
    if is_used is None or (vectors.device.type == "cpu" and bool(vectors.detach().sum().isfinite())):
        return vectors
    mask = is_used if isinstance(is_used, Tensor) else is_used()
    return vectors.where(rearrange(mask, "... n -> ... n 1"), 0)


def divide_by_temperature(queries: Tensor, temperature: float | Tensor) -> Tensor:
    """Return queries divided by the temperature, in the dtype of scores unless the temperature is the number 1."""
    if not isinstance(temperature, int | float | Tensor) or torch.as_tensor(temperature).numel() != 1:
        raise ValueError(f"temperature={temperature!r} must be a number or a tensor of one element")
    if not 0 < temperature < torch.inf:
        raise ValueError(f"temperature={float(temperature)} must be positive and finite")
    if not isinstance(temperature, Tensor):
        return queries if temperature == 1 else queries.to(score_dtype(queries)) / temperature
    return queries.to(score_dtype(queries)) / temperature.to(score_dtype(queries))


def attach_gradients(loss: Tensor, inputs: Sequence[Tensor | None], gradients: Sequence[Tensor | None]) -> Tensor:
    """Return the scalar `loss` with known gradients by the inputs, None for an input that needs none."""
    return _WithGradients.apply(loss, gradients, *inputs)


class _WithGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor, gradients: Sequence[Tensor | None], *inputs: Tensor | None) -> Tensor:
        ctx.has_gradient = [each is not None for each in gradients]
        ctx.dtypes = [None if each is None else each.dtype for each in inputs]
        ctx.save_for_backward(*(each for each in gradients if each is not None))
        return loss.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *factors: Tensor) -> tuple[Tensor | None, ...]:
        (factor,) = factors
        # In most cases the mean itself is differentiated, once. The factor is then 1, and gradients are neither
        # multiplied nor copied. On a GPU the host would have to wait to read the factor. A retained graph uses its
        # gradients again, so callers get copies.
        is_kept = torch._C._autograd._get_current_graph_task_keep_graph()
        is_last = not is_kept and factor.device.type == "cpu" and factor == 1
        scaled = iter(ctx.saved_tensors if is_last else torch._foreach_mul(ctx.saved_tensors, factor))
        grads = [next(scaled) if has else None for has in ctx.has_gradient]
        return None, None, *(g if g is None else g.to(dtype) for g, dtype in zip(grads, ctx.dtypes, strict=True))
