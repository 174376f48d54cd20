"""The exact partition of queries over a bank of any size, in tiles, with its gradient from the same pass.

Z(q) = sum over latents of exp(q . z). The gradient of its log is the softmax's mean latent, which adds up beside the
sum as in online softmax (Milakov and Gimelshein 2018, arXiv:1805.02867): two products, one pass over the bank. Beside
inputs and outputs it takes the memory of a tile's scores; latents come to the queries' device and dtype tile by tile.

M queries (rows), n latents of the bank, D latent dim; m counts a tile's rows.
"""

from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from cpc.candidates.bank import LatentBank
from cpc.losses.engine.score_gradients import flush_denormals, log_odds_against
from cpc.losses.engine.tiled_loss import mask_unused
from cpc.losses.engine.tiles import slices

TILE_ROWS, TILE_LATENTS = 1024, 4096  # 16 MiB of float32 scores


class Partition(NamedTuple):
    """The sums of each row.

    Attributes:
        log_odds: log Z less the positive's score.
        highest: the best score.
        num_ties: how many tie with the positive or beat it.
        mean_latent: d log Z / d q; None: it was not wanted.
    """

    log_odds: Tensor
    highest: Tensor
    num_ties: Tensor
    mean_latent: Tensor | None


@torch.no_grad()
def partition(
    queries: Float[Tensor, "M D"],
    bank: LatentBank,
    positive_scores: Float[Tensor, " M"],
    tie_width: Float[Tensor, " M"],
    sequence_id: Int[Tensor, " M"] | None,
    needs_gradient: bool,
) -> Partition:
    """Sum over the bank.

    Args:
        queries: divided by the temperature already, float32 or float64.
        bank: the latents.
        positive_scores: what Z is relative to.
        tie_width: how far from these a tie may lie.
        sequence_id: latents of this sequence are left out; -1: none. None: none at all.
        needs_gradient: whether the mean latent, d log Z / d q, is wanted.
    """
    of_tiles = []
    for rows in slices(len(queries), TILE_ROWS):
        own = None if sequence_id is None else rearrange(sequence_id[rows], "m -> m 1")
        of_tiles.append(_of_rows(queries[rows], bank, positive_scores[rows], tie_width[rows], own, needs_gradient))
    log_odds, highest, num_ties, mean_latent = zip(*of_tiles, strict=True)
    of_all = torch.cat(log_odds), torch.cat(highest), torch.cat(num_ties)
    return Partition(*of_all, torch.cat(mean_latent) if needs_gradient else None)


def _of_rows(
    queries: Tensor,
    bank: LatentBank,
    positive_scores: Tensor,
    tie_width: Tensor,
    own: Tensor | None,
    needs_gradient: bool,
) -> Partition:
    """Sums over the latents seen so far, relative to the best score so far."""
    lowest_tie = positive_scores - tie_width
    highest, total = torch.full_like(positive_scores, -torch.inf), torch.zeros_like(positive_scores)
    num_ties = torch.zeros_like(positive_scores, dtype=torch.long)
    mean_latent = torch.zeros_like(queries) if needs_gradient else None
    for places in bank.tiles(TILE_LATENTS):
        latents = bank.latents[places].to(queries)
        scores = queries @ latents.T
        if own is not None:
            is_own = (own == bank.sequence_id[places].to(queries.device)) & (own >= 0)
            if bool(is_own.any()):
                is_used = ~is_own.all(0)
                latents = mask_unused(latents, lambda is_used=is_used: is_used)
                scores.masked_fill_(is_own, -torch.inf)
        best = scores.amax(1)
        can_tie = best >= lowest_tie  # few rows of a trained critic
        if bool(can_tie.any()):
            num_ties[can_tie] += (scores[can_tie] >= rearrange(lowest_tie[can_tie], "m -> m 1")).sum(1)
        before, highest = highest, torch.maximum(highest, best)
        finite = highest.clamp(min=torch.finfo(scores.dtype).min)  # as long as a row has no negative: no inf - inf
        weights = flush_denormals(scores.sub_(rearrange(finite, "m -> m 1")).exp_())
        shrink = (before - finite).exp()
        total = total * shrink + weights.sum(1)
        if mean_latent is not None:
            mean_latent = torch.addmm(mean_latent * rearrange(shrink, "m -> m 1"), weights, latents)
    if mean_latent is not None:
        mean_latent /= rearrange(total.clamp(min=1), "m -> m 1")
    return Partition(log_odds_against(positive_scores, highest, total.log()), highest, num_ties, mean_latent)
