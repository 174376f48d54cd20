"""The mean InfoNCE loss with both gradients formed in the forward pass, a tile of rows at a time.

The gradient of a mean of log-softmax losses is known as soon as the softmax is: forming it at once costs the three
matrix products that anyone must pay (scores, gradient of the queries, gradient of the candidates), and only a tile of
the M x N scores ever exists.

M queries (rows), N candidates, D latent dim.
"""

from typing import Any

import torch
from einops import rearrange
from torch import Tensor
from torch.autograd.function import once_differentiable

from cpc.losses.blocks import Block
from cpc.losses.products import Products
from cpc.losses.slopes import loss_and_factor
from cpc.losses.tiles import tiles_of


class MeanInfoNCE(torch.autograd.Function):
    """`(queries, candidates, query, weight, bias, blocks, products)` -> (mean loss, row losses, accuracy).

    Row i is about `queries[query[i]]` and counts `weight[i]` in the mean, which alone carries gradients; `query` None
    means one row per query. `bias` `[N]` is added to every score, or None; `blocks` says which row meets whom
    (`cpc.losses.blocks`), `products` how matrices are multiplied (`cpc.losses.products`). Queries may have a shorter
    dtype than candidates, which decide the dtype of scores, losses and sums.
    """

    @staticmethod
    def forward(  # noqa: D102 (the class says it)
        ctx: Any,
        queries: Tensor,
        candidates: Tensor,
        query: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        blocks: list[Block],
        products: type[Products],
    ) -> tuple[Tensor, Tensor, Tensor]:
        needs_gradient = any(ctx.needs_input_grad[:2])
        # float16 would lose small gradients, and a gradient scaler's factor is beyond its range
        gradient_dtype = candidates.dtype if queries.dtype == torch.float16 else queries.dtype
        query_gradient = torch.zeros_like(queries if needs_gradient else queries[:0], dtype=gradient_dtype)
        candidate_gradient = torch.zeros_like(candidates if needs_gradient else candidates[:0])
        loss_nats = torch.empty_like(weight)
        accuracy = torch.empty_like(weight, dtype=torch.float32)
        for block in blocks:
            if block.columns is None:
                of_block, block_bias, block_gradient = products(candidates), bias, candidate_gradient
            else:
                of_block = products(candidates[block.columns])
                block_bias = None if bias is None else bias[block.columns]
                block_gradient = torch.zeros_like(of_block.candidates if needs_gradient else candidate_gradient)
            tiles = tiles_of(block, of_block, block_bias)
            for tile in tiles.rows():
                rows = tile if block.rows is None else block.rows[tile]
                tile_query = rows if query is None else query[rows]
                tile_queries = queries[tile_query].to(candidates.dtype)
                log_odds, accuracy[rows] = tiles.contrast(tile_queries, tile)
                loss_nats[rows], factor = loss_and_factor(log_odds)
                if needs_gradient:
                    row_weight = rearrange(weight[rows] * factor, "m -> m 1")
                    query_gradient[tile_query] = (tiles.query_gradient() * row_weight).to(gradient_dtype)
                    tiles.add_candidate_gradient(tile_queries * row_weight, block_gradient)
            if needs_gradient and block.columns is not None:
                candidate_gradient.index_add_(0, block.columns, block_gradient)
        ctx.query_dtype = queries.dtype
        ctx.save_for_backward(query_gradient, candidate_gradient)
        ctx.mark_non_differentiable(loss_nats, accuracy)
        return torch.dot(weight, loss_nats), loss_nats, accuracy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: D102
        query_gradient, candidate_gradient = ctx.saved_tensors
        # Most often the mean is what is differentiated: then nothing is multiplied, and no second copy needed. (To look
        # at the factor would make a GPU wait.)
        if gradients[0].device.type != "cpu" or gradients[0] != 1:
            query_gradient, candidate_gradient = query_gradient * gradients[0], candidate_gradient * gradients[0]
        return query_gradient.to(ctx.query_dtype), candidate_gradient, None, None, None, None, None
