"""The loss against a bank of any size: exact sums of exp(score) in tiles, with their gradient from the same pass.

Z(q) = sum over latents of exp(q . z). The gradient of log Z is the mean latent under the softmax. This mean is added up
together with the sum, as in online softmax (Milakov and Gimelshein 2018, arXiv:1805.02867). This takes two products,
one pass over the bank, and, besides inputs and outputs, the memory of one tile of scores. Latents are copied to the
queries' device and dtype tile by tile.

M queries (rows), n latents of the bank, D latent dim; m counts the rows of a tile.
"""

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from cpc.candidates.bank import LatentBank
from cpc.losses.engine.score_gradients import accuracy_of, flush_denormals, log_odds_against, loss_and_factor, tie_width
from cpc.losses.engine.tiled_loss import attach_gradients, mask_unused

TILE_ROWS, TILE_LATENTS = 1024, 4096  # 16 MiB of float32 scores


def partition_loss(
    queries: Float[Tensor, "M D"],
    positives: Float[Tensor, "M D"],
    bank: LatentBank,
    sequence_id: Int[Tensor, " M"] | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean, the row losses and the accuracies; only the mean carries gradients.

    Both inputs have the dtype of scores, and queries are already divided by the temperature. Latents of a row's
    `sequence_id` are left out, unless the id is -1 or `sequence_id` is None.
    """
    positive_scores = torch.einsum("md,md->m", queries, positives)
    width = tie_width(queries, positives.norm(dim=1, keepdim=True))[:, 0]
    needs_gradient = torch.is_grad_enabled() and queries.requires_grad
    tiles = []
    for start in range(0, len(queries), TILE_ROWS):
        rows = slice(start, start + TILE_ROWS)
        own = None if sequence_id is None else rearrange(sequence_id[rows], "m -> m 1")
        tiles.append(_tile(queries[rows], bank, positive_scores[rows], width[rows], own, needs_gradient))
    loss_nats, factor, accuracy, mean_latent = map(torch.cat, zip(*tiles, strict=True))
    score_grads = factor / len(queries)  # by log Z; negated: by the positives' scores
    queries_grad = mean_latent * rearrange(score_grads, "m -> m 1") if needs_gradient else None
    loss = attach_gradients(loss_nats.mean(), (queries, positive_scores), (queries_grad, -score_grads))
    return loss, loss_nats, accuracy


@torch.no_grad()
def _tile(
    queries: Tensor, bank: LatentBank, positive_scores: Tensor, width: Tensor, own: Tensor | None, needs_gradient: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return losses, derivatives by log Z, accuracies, and d log Z / d q, which is 0 if it is not needed.

    While latents are read, sums are relative to the highest score so far.
    """
    lowest_tie = positive_scores - width
    highest = torch.full_like(rearrange(positive_scores, "m -> m 1"), -torch.inf)
    total = torch.zeros_like(highest)
    num_ties = torch.zeros_like(positive_scores, dtype=torch.long)
    mean_latent = torch.zeros_like(queries)
    for indices in bank.tiles(TILE_LATENTS):
        latents = bank.latents[indices].to(queries)
        scores = queries @ latents.T
        if own is not None:
            is_own = (own == bank.sequence_id[indices].to(queries.device)) & (own >= 0)
            if bool(is_own.any()):
                latents = mask_unused(latents, ~is_own.all(0))
                scores.masked_fill_(is_own, -torch.inf)
        best = scores.amax(1)
        can_tie = best >= lowest_tie  # few rows of a trained critic need this
        if bool(can_tie.any()):
            num_ties[can_tie] += (scores[can_tie] >= rearrange(lowest_tie[can_tie], "m -> m 1")).sum(1)
        before, highest = highest, torch.maximum(highest, rearrange(best, "m -> m 1"))
        finite = highest.clamp(min=torch.finfo(scores.dtype).min)  # avoids inf - inf while a row has no candidate
        weights = flush_denormals(scores.sub_(finite).exp_())
        shrink = (before - finite).exp()
        total = total * shrink + weights.sum(1, keepdim=True)
        if needs_gradient:
            mean_latent = torch.addmm(mean_latent * shrink, weights, latents)
    highest, log_total = highest[:, 0], total[:, 0].log()
    # The loss is log(1 + Z / exp s+), precise even if it is tiny.
    loss_nats, factor = loss_and_factor(log_odds_against(positive_scores, highest, log_total))
    accuracy = accuracy_of(positive_scores, highest, num_ties, width)
    return loss_nats, factor, accuracy, mean_latent / total.clamp(min=1)
