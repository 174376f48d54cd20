"""The mean loss of rows with all its gradients, formed in the forward pass, a tile of rows at a time.

The gradient of a mean of softmax or logistic losses is known as soon as the scores are: forming it at once costs the
three matrix products that anyone must pay (scores, gradient of the queries, gradient of the candidates), and only a
tile of the M x N scores ever exists.

M rows, N candidates, T targets, R drawn negatives, D latent dim.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from cpc.losses.engine.blocks import Blocks
from cpc.losses.engine.score_gradients import ScoreCorrections, losses_and_gradients, tie_width
from cpc.losses.engine.tiles import tiles_of


def tiled_loss(
    queries: Tensor,
    candidates: Tensor,
    blocks: Blocks,
    weight: Float[Tensor, " M"],
    *,
    form: str = "softmax",
    query: Tensor | None = None,
    negatives: Tensor | None = None,
    bias: Tensor | None = None,
    target_scores: Float[Tensor, "M T"] | None = None,
    shifts: ScoreCorrections | None = None,
    compute: str = "float32",
) -> tuple[Tensor, Tensor, Tensor]:
    """Weighted mean, row losses and accuracy; the mean alone carries gradients.

    Args:
        queries: `[M, D]`, or those that `query` names; may be of a shorter dtype than the candidates, which decide the
            dtype of scores, losses and sums.
        candidates: `[N, D]` for all rows, or each row's own, `[M, N, D]`.
        blocks: which rows are scored against which candidates.
        weight: of each row in the mean.
        form: a name in `cpc.losses.engine.score_gradients.TERMS`.
        query: `[M]`, the place of each row's query; None: its own.
        negatives: `[M, R]`, places of drawn negatives among the candidates; None: all candidates.
        bias: added to every score, `[N]` or `[M, N]`.
        target_scores: of targets that are not among the candidates.
        shifts: corrections of scores, with a width of ties if targets are not among the candidates.
        compute: `bf16` rounds the operands of products (`cpc.losses.engine.tiles`).
    """
    inputs = (queries, candidates, bias, target_scores)
    needs = [each is not None and each.requires_grad and torch.is_grad_enabled() for each in inputs]
    given = (query, negatives, *blocks, *(ScoreCorrections() if shifts is None else shifts))
    if torch.compiler.is_compiling():
        loss, loss_nats, accuracy, *_ = _operator(*inputs, weight, given, form, compute, needs)
        return loss, loss_nats, accuracy
    loss, loss_nats, accuracy, gradients = _losses_and_gradients(inputs, weight, given, form, compute, needs)
    return attach_gradients(loss, inputs, gradients), loss_nats, accuracy


def _losses_and_gradients(
    inputs: Sequence[Tensor | None],
    weight: Float[Tensor, " M"],
    given: Sequence[Tensor | None],
    form: str,
    compute: str,
    needs: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, list[Tensor | None]]:
    """See `tiled_loss`.

    Args:
        inputs: queries, candidates, bias and target_scores.
        weight: of each row.
        given: query, negatives, the fields of `Blocks` and those of `ScoreCorrections`.
        form: of the loss.
        compute: of the products.
        needs: whether each of the inputs needs a gradient.
    """
    queries, candidates, bias, target_scores = inputs
    assert queries is not None
    assert candidates is not None
    query, negatives, numbers, pools, sizes, *rest = given
    blocks: Any = Blocks(numbers, pools, sizes)  # type: ignore[arg-type]
    shifts = ScoreCorrections(*rest)
    queries_grad, candidates_grad, bias_grad, targets_grad = gradients = [
        each.new_zeros(each.shape, dtype=_gradient_dtype(each, candidates)) if each is not None and has else None
        for each, has in zip(inputs, needs, strict=True)
    ]
    loss_nats = torch.empty_like(weight)
    accuracy = torch.empty_like(weight, dtype=torch.float32)
    with torch.no_grad(), torch.autocast(queries.device.type, enabled=False):
        for block in blocks.parted():
            columns = block.columns
            block_candidates = candidates if columns is None else candidates[columns]
            block_bias = bias if bias is None or columns is None else bias[columns]
            block_gradient = candidates_grad
            if candidates_grad is not None and columns is not None:
                block_gradient = torch.zeros_like(block_candidates)
            drawn, own = None, block.positives
            if negatives is not None:
                assert own is not None
                drawn = torch.cat([own, block.places(negatives)], 1)
            lengths = block_candidates.norm(dim=-1) if own is not None and drawn is None else None
            num_rows = len(weight) if block.rows is None else len(block.rows)
            tiles = tiles_of(num_rows, block_candidates, block_bias, drawn, compute)
            for tile in tiles.rows():
                rows = tile if block.rows is None else block.rows[tile]
                row_queries = rows if query is None else query[rows]
                tile_queries = queries[row_queries].to(candidates.dtype)
                is_used = own_of_tile = None
                shifts_of_tile = shifts.of(rows)
                if own is not None:
                    places = own[tile]
                    own_of_tile = places if drawn is None else torch.zeros_like(places)  # drawn: in front
                    own_lengths = block_candidates[places].norm(dim=-1) if lengths is None else lengths[places]
                    own_bias = None if block_bias is None else block_bias[places]
                    shifts_of_tile = shifts_of_tile._replace(tie_width=tie_width(tile_queries, own_lengths, own_bias))
                if block.pool is not None and block.sequence is not None and drawn is None:
                    is_used = block.pool[block.sequence[tile]]
                targets = None if target_scores is None else target_scores[rows]
                scores = tiles.scores(tile_queries, tile)
                accuracy[rows], terms = losses_and_gradients(
                    form, scores, shifts_of_tile, own_of_tile, targets, is_used
                )
                loss_nats[rows] = terms.loss[:, 0]
                if not any(each is not None for each in gradients):
                    continue
                row_weight = rearrange(weight[rows], "m -> m 1") * terms.factor
                score_gradients = tiles.spread(terms.score_gradients, tile)
                if queries_grad is not None:
                    queries_grad[row_queries] = (tiles.query_gradient(score_gradients) * row_weight).to(
                        queries_grad.dtype
                    )
                if bias_grad is not None:
                    tiles.add_bias_gradient(score_gradients, row_weight, bias_grad)
                if block_gradient is not None:
                    tiles.add_candidate_gradient(score_gradients, tile_queries * row_weight, block_gradient)
                if targets_grad is not None:
                    targets_grad[rows] = terms.targets_grad * row_weight
            if candidates_grad is not None and block_gradient is not None and columns is not None:
                candidates_grad.index_add_(0, columns, block_gradient)
        loss = torch.dot(weight, loss_nats)
    return loss, loss_nats, accuracy, gradients


@torch.library.custom_op("cpc::tiled_loss", mutates_args=())
def _operator(
    queries: Tensor,
    candidates: Tensor,
    bias: Tensor | None,
    target_scores: Tensor | None,
    weight: Tensor,
    given: Sequence[Tensor | None],
    form: str,
    compute: str,
    needs: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`tiled_loss` as compilers see it, with the gradients among the results; empty ones where none is needed."""
    inputs = (queries, candidates, bias, target_scores)
    loss, loss_nats, accuracy, gradients = _losses_and_gradients(inputs, weight, given, form, compute, needs)
    q, z, b, t = (weight.new_empty(0) if each is None else each for each in gradients)
    return loss, loss_nats, accuracy, q, z, b, t


@_operator.register_fake
def _(
    queries: Tensor,
    candidates: Tensor,
    bias: Tensor | None,
    target_scores: Tensor | None,
    weight: Tensor,
    given: Sequence[Tensor | None],
    form: str,
    compute: str,
    needs: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    q, z, b, t = (
        each.new_empty(each.shape, dtype=_gradient_dtype(each, candidates))
        if each is not None and has
        else weight.new_empty(0)
        for each, has in zip((queries, candidates, bias, target_scores), needs, strict=True)
    )
    accuracy = torch.empty_like(weight, dtype=torch.float32)
    return weight.new_empty(()), torch.empty_like(weight), accuracy, q, z, b, t


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.needs, ctx.dtypes = inputs[-1], [None if each is None else each.dtype for each in inputs[:4]]
    ctx.save_for_backward(*output[3:])


def _backward(ctx: Any, factor: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    of_inputs = zip(ctx.saved_tensors, ctx.dtypes, ctx.needs, strict=True)
    return *((each * factor).to(dtype) if has else None for each, dtype, has in of_inputs), None, None, None, None, None


_operator.register_autograd(_backward, setup_context=_keep)


def _gradient_dtype(of: Tensor, candidates: Tensor) -> torch.dtype:
    """float16 would lose small gradients, and a gradient scaler's factor is beyond its range."""
    return candidates.dtype if of.dtype == torch.float16 else of.dtype


def mask_unused(vectors: Float[Tensor, "*N D"], is_used: Callable[[], Bool[Tensor, "..."]]) -> Float[Tensor, "*N D"]:
    """Zeros for the vectors that no row is scored against, where any of all is not finite; their gradients are 0.

    Padding may hold anything, and its slope of 0 times nan is nan. The others stay as they are. A CPU looks first; a
    GPU, which would have to wait for the answer, and a compiled step always clean: one pass over the vectors.
    """
    may_look = vectors.device.type == "cpu" and not torch.compiler.is_compiling()
    if may_look and bool(vectors.detach().sum().isfinite()):  # one that overflows costs no more
        return vectors
    return vectors.where(rearrange(is_used(), "... n -> ... n 1"), 0)


def score_dtype(queries: Tensor) -> torch.dtype:
    """Scores and sums are float32, or float64 for float64 queries, whatever the autocast dtype."""
    return torch.float64 if queries.dtype == torch.float64 else torch.float32


def scaled(queries: Tensor, temperature: float | Tensor) -> Tensor:
    """Queries divided by the temperature, in the dtype of scores unless that is 1.

    Raises:
        ValueError: if the temperature is not one positive, finite number.
    """
    if isinstance(temperature, Tensor) and temperature.numel() != 1:
        raise ValueError(f"temperature {tuple(temperature.shape)} must be a number or a tensor of one element")
    if not isinstance(temperature, int | float | Tensor):
        raise ValueError(f"temperature is a {type(temperature).__name__}; it must be a number or a tensor of one")
    if not 0 < temperature < torch.inf:
        raise ValueError(f"temperature={float(temperature)} must be positive and finite")
    if not isinstance(temperature, Tensor):
        return queries if temperature == 1 else queries.to(score_dtype(queries)) / temperature
    return queries.to(score_dtype(queries)) / temperature.to(score_dtype(queries))


def attach_gradients(loss: Tensor, inputs: Sequence[Tensor | None], gradients: Sequence[Tensor | None]) -> Tensor:
    """A scalar whose gradients by the inputs are known already; None: of an input that needs none."""
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
        (factor,), saved = factors, iter(ctx.saved_tensors)
        # Most often the mean itself is differentiated, once: then nothing is multiplied, and no second copy needed. (To
        # look at the factor would make a GPU wait.) A graph that is kept needs its gradients again: callers get others.
        is_kept = torch._C._autograd._get_current_graph_task_keep_graph()
        is_last = not is_kept and factor.device.type == "cpu" and factor == 1
        found = [(next(saved) if is_last else next(saved) * factor) if has else None for has in ctx.has_gradient]
        return None, None, *(g if g is None else g.to(dtype) for g, dtype in zip(found, ctx.dtypes, strict=True))
