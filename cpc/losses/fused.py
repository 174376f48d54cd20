"""The mean InfoNCE loss with both gradients formed in the forward pass, a tile of rows at a time.

The gradient of a mean of log-softmax losses is known as soon as the softmax is: forming it at once costs the three
matrix products that anyone must pay (scores, gradient of the queries, gradient of the candidates), and only a tile of
the M x N scores ever exists.

M queries (rows), N candidates, D latent dim.
"""

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor
from torch.autograd.function import once_differentiable

from cpc.losses.blocks import Block
from cpc.losses.products import Products

TILE_ROWS = 512


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
            of_block = products(candidates if block.columns is None else candidates[block.columns])
            block_bias = bias if bias is None or block.columns is None else bias[block.columns]
            block_gradient = torch.zeros_like(of_block.candidates) if needs_gradient else None
            num_rows, num_columns = len(block.positives), len(of_block.candidates)
            scratch = candidates.new_empty(min(TILE_ROWS, num_rows), num_columns)
            for start in range(0, num_rows, TILE_ROWS):
                tile = slice(start, min(start + TILE_ROWS, num_rows))
                rows = tile if block.rows is None else block.rows[tile]
                tile_query = rows if query is None else query[rows]
                tile_queries = queries[tile_query].to(candidates.dtype)
                scores = of_block.scores(tile_queries, out=scratch[: tile.stop - tile.start])
                if block_bias is not None:
                    scores += block_bias
                loss_nats[rows], accuracy[rows], slopes = _contrast(scores, block, tile)
                if block_gradient is not None:
                    row_weight = rearrange(weight[rows], "m -> m 1")
                    query_gradient[tile_query] = (of_block.query_gradient(slopes) * row_weight).to(gradient_dtype)
                    of_block.add_candidate_gradient(slopes, tile_queries * row_weight, block_gradient)
            if block_gradient is not None:
                if block.columns is None:
                    candidate_gradient += block_gradient
                else:
                    candidate_gradient.index_add_(0, block.columns, block_gradient)
        ctx.query_dtype = queries.dtype
        ctx.save_for_backward(query_gradient, candidate_gradient)
        ctx.mark_non_differentiable(loss_nats, accuracy)
        return torch.dot(weight, loss_nats), loss_nats, accuracy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: D102
        query_gradient, candidate_gradient = ctx.saved_tensors
        by_query = (query_gradient * gradients[0]).to(ctx.query_dtype)
        return by_query, candidate_gradient * gradients[0], None, None, None, None, None


def _contrast(scores: Tensor, block: Block, tile: slice) -> tuple[Tensor, Tensor, Tensor]:
    """Loss and accuracy per row of a tile, and d loss / d score, in the scores' own memory."""
    positive = rearrange(block.positives[tile], "m -> m 1")
    if block.negatives is not None:
        return _against_drawn(scores, positive, block.negatives[tile].long())
    shut_out = None if block.pool is None else ~block.pool[block.sequence[tile]]
    return _against_all(scores, positive, shut_out)


def _against_all(scores: Tensor, positive: Tensor, shut_out: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Against every candidate that is not shut out."""
    positive_score = scores.gather(1, positive)
    if shut_out is not None:
        scores.masked_fill_(shut_out, -torch.inf)
    scores.scatter_(1, positive, -torch.inf)
    best_negative = scores.amax(1, keepdim=True)
    accuracy = rank_accuracy(positive_score, best_negative, scores)
    scores.scatter_(1, positive, positive_score)
    probabilities, log_total = _softmax(scores)
    loss = log_total + torch.maximum(best_negative, positive_score) - positive_score
    probabilities.scatter_add_(1, positive, scores.new_full(positive.shape, -1.0))
    return rearrange(loss, "m 1 -> m"), accuracy, probabilities


def _against_drawn(scores: Tensor, positive: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Against drawn negatives: every score is at hand, the drawn ones are selected and may repeat."""
    drawn = torch.cat([positive, negatives], 1)
    drawn_scores = scores.gather(1, drawn)
    positive_score, negative_scores = drawn_scores.split([1, negatives.shape[1]], 1)
    best_negative = negative_scores.amax(1, keepdim=True)
    accuracy = rank_accuracy(positive_score, best_negative, negative_scores)
    loss = torch.maximum(best_negative, positive_score) - positive_score
    probabilities, log_total = _softmax(drawn_scores)
    probabilities[:, 0] -= 1
    scores.zero_().scatter_add_(1, drawn, probabilities)
    return rearrange(loss + log_total, "m 1 -> m"), accuracy, scores


def _softmax(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities, in the scores' own memory, and the log of the sum of exponentials beyond the largest, `[M, 1]`.

    The largest probability is one over that sum, and no less than 1/N: its log is safe, that of the positive's is not.

    Probabilities so small that products with them would be denormal become exact zeros: denormal operands slow a CPU's
    matrix products down up to a hundredfold, and a trained critic makes many; e^-61 is far below what a float32 holds.
    """
    probabilities = torch.softmax(scores, 1, out=scores if scores.device.type == "cpu" else None)
    log_total = -probabilities.amax(1, keepdim=True).log()
    smallest = torch.finfo(scores.dtype).tiny ** 0.7
    return F.threshold(probabilities, smallest, 0.0, inplace=True), log_total


def rank_accuracy(positive_score: Tensor, best_negative: Tensor, negative_scores: Tensor) -> Tensor:
    """[no negative higher] / (1 + ties), `[M]`; only rows whose best negative equals the positive count their ties."""
    accuracy = rearrange((best_negative < positive_score).float(), "m 1 -> m")
    tied = (best_negative == positive_score).nonzero()[:, 0]
    if len(tied) > 0:
        num_ties = (negative_scores[tied] == positive_score[tied]).sum(1)
        accuracy[tied] = 1 / (1 + num_ties.float())
    return accuracy
