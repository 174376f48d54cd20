"""The mean InfoNCE loss with both gradients formed in the forward pass, a tile of rows at a time.

The gradient of a mean of log-softmax losses is known as soon as the softmax is: forming it at once costs the three
matrix products that anyone must pay (scores, gradient of the queries, gradient of the candidates), and only a tile of
the M x N scores ever exists.

M queries (rows), N candidates, D latent dim, B sequences, R drawn negatives.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor
from torch.autograd.function import once_differentiable

TILE_ROWS = 512


class MeanInfoNCE(torch.autograd.Function):
    """`(queries, candidates, positives, pool, query_sequence, bias, negatives)` -> (mean loss, row losses, accuracy).

    Only the mean carries gradients. `pool` is `[B, N]` or None (everyone), `bias` `[N]` is added to every score or
    None, `negatives` `[M, R]` replaces the pool where given.
    """

    @staticmethod
    def forward(  # noqa: D102 (the class says it)
        ctx: Any,
        queries: Tensor,
        candidates: Tensor,
        positives: Tensor,
        pool: Tensor | None,
        query_sequence: Tensor,
        bias: Tensor | None,
        negatives: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        num_rows, num_candidates = len(queries), len(candidates)
        needs_gradient = any(ctx.needs_input_grad[:2])
        query_gradient = torch.empty_like(queries if needs_gradient else queries[:0])
        candidate_gradient = torch.zeros_like(candidates if needs_gradient else candidates[:0])
        scratch = queries.new_empty(min(TILE_ROWS, num_rows), num_candidates)
        losses, accuracies = [], []
        for start in range(0, num_rows, TILE_ROWS):
            rows = slice(start, min(start + TILE_ROWS, num_rows))
            scores = torch.mm(queries[rows], candidates.T, out=scratch[: rows.stop - rows.start])
            if bias is not None:
                scores += bias
            positive = rearrange(positives[rows], "m -> m 1")
            if negatives is not None:
                loss, accuracy, weights = _against_drawn(scores, positive, negatives[rows])
            else:
                shut_out = None if pool is None else ~pool[query_sequence[rows]]
                loss, accuracy, weights = _against_all(scores, positive, shut_out)
            losses.append(loss)
            accuracies.append(accuracy)
            if needs_gradient:
                weights /= num_rows
                torch.mm(weights, candidates, out=query_gradient[rows])
                candidate_gradient.addmm_(weights.T, queries[rows])
        loss_nats, accuracy = torch.cat(losses), torch.cat(accuracies)
        ctx.save_for_backward(query_gradient, candidate_gradient)
        ctx.mark_non_differentiable(loss_nats, accuracy)
        return loss_nats.mean(), loss_nats, accuracy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: D102
        query_gradient, candidate_gradient = ctx.saved_tensors
        return query_gradient * gradients[0], candidate_gradient * gradients[0], None, None, None, None, None


def _against_all(scores: Tensor, positive: Tensor, shut_out: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Loss and accuracy per row, and d loss / d score, in the scores' own memory."""
    positive_score = scores.gather(1, positive)
    if shut_out is not None:
        scores.masked_fill_(shut_out, -torch.inf)
    scores.scatter_(1, positive, -torch.inf)
    best_negative = scores.amax(1, keepdim=True)
    accuracy = rank_accuracy(positive_score, best_negative, scores)
    scores.scatter_(1, positive, positive_score)
    highest = torch.maximum(best_negative, positive_score)
    _exponentiate(scores.sub_(highest))
    total = scores.sum(1, keepdim=True)
    loss = total.log() + highest - positive_score
    scores.div_(total)
    scores.scatter_add_(1, positive, scores.new_full(positive.shape, -1.0))
    return rearrange(loss, "m 1 -> m"), accuracy, scores


def _against_drawn(scores: Tensor, positive: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same for drawn negatives: every score is at hand, the drawn ones are selected and may repeat."""
    positive_score, negative_scores = scores.gather(1, positive), scores.gather(1, negatives)
    best_negative = negative_scores.amax(1, keepdim=True)
    accuracy = rank_accuracy(positive_score, best_negative, negative_scores)
    highest = torch.maximum(best_negative, positive_score)
    exponentials = _exponentiate(negative_scores.sub_(highest))
    positive_exponential = _exponentiate(positive_score - highest)
    total = exponentials.sum(1, keepdim=True) + positive_exponential
    loss = total.log() + highest - positive_score
    scores.zero_()
    scores.scatter_add_(1, negatives, exponentials.div_(total))
    scores.scatter_add_(1, positive, positive_exponential / total - 1)
    return rearrange(loss, "m 1 -> m"), accuracy, scores


def _exponentiate(scores: Tensor) -> Tensor:
    """Exponentiate in place, with exact zeros instead of numbers so small that products with them would be denormal.

    Denormal operands slow a CPU's matrix products down up to a hundredfold, and a trained critic makes many; e^-61 of a
    row's largest term is far below what float32 sums can hold.
    """
    smallest = 0.7 * math.log(torch.finfo(scores.dtype).tiny)
    return F.threshold(scores, smallest, -math.inf, inplace=True).exp_()


def rank_accuracy(positive_score: Tensor, best_negative: Tensor, negative_scores: Tensor) -> Tensor:
    """[no negative higher] / (1 + ties), `[M]`; only rows whose best negative equals the positive count their ties."""
    accuracy = rearrange((best_negative < positive_score).float(), "m 1 -> m")
    tied = (best_negative == positive_score).nonzero()[:, 0]
    if len(tied) > 0:
        num_ties = (negative_scores[tied] == positive_score[tied]).sum(1)
        accuracy[tied] = 1 / (1 + num_ties.float())
    return accuracy
