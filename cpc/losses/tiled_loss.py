"""The mean loss of rows with all its gradients, formed in the forward pass, a tile of rows at a time.

The gradient of a mean of softmax or logistic losses is known as soon as the scores are: forming it at once costs the
three matrix products that anyone must pay (scores, gradient of the queries, gradient of the candidates), and only a
tile of the M x N scores ever exists.

M rows, N candidates, T targets, R drawn negatives, D latent dim.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from cpc.losses.plan import Block
from cpc.losses.products import Products
from cpc.losses.slopes import Shifts, tile_terms
from cpc.losses.tiles import tiles_of


class Given(NamedTuple):
    """What a loss is made of besides scores; nothing in here gets a gradient.

    Attributes:
        blocks: which rows meet which candidates (`cpc.losses.plan`).
        weight: `[M]`, of each row in the mean.
        form: a name in `cpc.losses.slopes.TERMS`.
        query: `[M]`, the query that each row is about; None: its own.
        negatives: `[M, R]`, places of drawn negatives among the candidates; None: all candidates are met.
        shifts: of scores (`cpc.losses.slopes`).
        products: how matrices are multiplied (`cpc.losses.products`).
    """

    blocks: list[Block]
    weight: Tensor
    form: str = "softmax"
    query: Tensor | None = None
    negatives: Tensor | None = None
    shifts: Shifts = Shifts()
    products: type[Products] = Products


def tiled_loss(
    queries: Tensor,
    candidates: Tensor,
    given: Given,
    bias: Tensor | None = None,
    target_scores: Float[Tensor, "M T"] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Weighted mean, row losses and accuracy; the mean alone carries gradients.

    Args:
        queries: `[M, D]`, or those that `given.query` names; may be of a shorter dtype than the candidates, which
            decide the dtype of scores, losses and sums.
        candidates: `[N, D]`, which all rows may meet, or each row's own, `[M, N, D]`.
        given: all else.
        bias: added to every score, `[N]` or `[M, N]`.
        target_scores: of targets that are not among the candidates.
    """
    inputs: list[Tensor | None] = [queries, candidates, bias, target_scores]
    if not torch.is_grad_enabled():  # else a parameter would ask for its gradient even so
        inputs = [None if each is None else each.detach() for each in inputs]
    with torch.autocast(queries.device.type, enabled=False):
        return _TiledLoss.apply(*inputs, given)


def only_met(vectors: Float[Tensor, "*N D"], is_met: Callable[[], Bool[Tensor, "..."]]) -> Float[Tensor, "*N D"]:
    """Zeros for the vectors that no row meets, where any of all is not finite; they get gradients of 0.

    Padding may hold anything, and its slope of 0 times nan is nan. What a row meets stays as it is. A CPU looks first;
    a GPU, which to ask would make wait, always cleans: one pass over the vectors.
    """
    if vectors.device.type == "cpu" and bool(vectors.detach().sum().isfinite()):  # one that overflows costs no more
        return vectors
    return vectors.where(rearrange(is_met(), "... n -> ... n 1"), 0)


class _TiledLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, candidates: Tensor, bias: Tensor | None, target_scores: Tensor | None, given: Given
    ) -> tuple[Tensor, Tensor, Tensor]:
        gradients: list[Tensor | None] = [None] * 4
        for place, each in enumerate((queries, candidates, bias, target_scores)):
            if each is not None and ctx.needs_input_grad[place]:
                # float16 would lose small gradients, and a gradient scaler's factor is beyond its range
                dtype = candidates.dtype if each.dtype == torch.float16 else each.dtype
                gradients[place] = torch.zeros_like(each, dtype=dtype)
        of_queries, of_candidates, of_bias, of_targets = gradients
        loss_nats = torch.empty_like(given.weight)
        accuracy = torch.empty_like(given.weight, dtype=torch.float32)
        for block in given.blocks:
            columns = block.columns
            of_block = candidates if columns is None else candidates[columns]
            block_bias = bias if bias is None or columns is None else bias[columns]
            block_gradient = of_candidates
            if of_candidates is not None and columns is not None:
                block_gradient = torch.zeros_like(of_block)
            drawn, own = None, block.positives
            if given.negatives is not None:
                assert own is not None
                drawn = torch.cat([own, block.places(given.negatives)], 1)
            num_rows = len(given.weight) if block.rows is None else len(block.rows)
            tiles = tiles_of(num_rows, of_block, block_bias, drawn, given.products)
            for tile in tiles.rows():
                rows = tile if block.rows is None else block.rows[tile]
                query = rows if given.query is None else given.query[rows]
                of_rows = queries[query].to(candidates.dtype)
                is_met = own_of_tile = None
                if own is not None:
                    own_of_tile = own[tile] if drawn is None else torch.zeros_like(own[tile])  # drawn: in front
                if block.pool is not None and block.sequence is not None and drawn is None:
                    is_met = block.pool[block.sequence[tile]]
                targets = None if target_scores is None else target_scores[rows]
                scores = tiles.scores(of_rows, tile)
                shifts = given.shifts.of(rows)
                accuracy[rows], terms = tile_terms(given.form, scores, shifts, own_of_tile, targets, is_met)
                loss_nats[rows] = terms.loss[:, 0]
                weight = rearrange(given.weight[rows], "m -> m 1") * terms.factor
                if of_queries is not None:
                    of_queries[query] = (tiles.query_gradient(terms.slopes) * weight).to(of_queries.dtype)
                if of_bias is not None:
                    tiles.add_bias_gradient(terms.slopes, weight, of_bias)
                if block_gradient is not None:
                    tiles.add_candidate_gradient(terms.slopes, of_rows * weight, block_gradient)
                if of_targets is not None:
                    of_targets[rows] = terms.of_targets * weight
            if of_candidates is not None and block_gradient is not None and columns is not None:
                of_candidates.index_add_(0, columns, block_gradient)
        ctx.query_dtype = queries.dtype
        ctx.has_gradient = [each is not None for each in gradients]
        ctx.save_for_backward(*(each for each in gradients if each is not None))
        ctx.mark_non_differentiable(loss_nats, accuracy)
        return torch.dot(given.weight, loss_nats), loss_nats, accuracy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        saved = iter(ctx.saved_tensors)
        # Most often the mean itself is differentiated: then nothing is multiplied, and no second copy needed. (To look
        # at the factor would make a GPU wait.)
        is_one = gradients[0].device.type == "cpu" and gradients[0] == 1
        found = [(next(saved) if is_one else next(saved) * gradients[0]) if has else None for has in ctx.has_gradient]
        return None if found[0] is None else found[0].to(ctx.query_dtype), *found[1:], None
