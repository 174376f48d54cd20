"""The exact sum of exp(score) of queries over a bank of any size, in tiles, with its gradient from the same pass.

Z(q) = sum over latents of exp(q . z). The gradient of log Z is the mean latent under the softmax. This mean is added up
together with the sum, as in online softmax (Milakov and Gimelshein 2018, arXiv:1805.02867). This takes two products,
one pass over the bank, and, besides inputs and outputs, the memory of one tile of scores. Latents are copied to the
queries' device and dtype tile by tile.

M queries (rows), n latents of the bank, D latent dim; m counts the rows of a tile.
"""

from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from cpc.candidates.bank import LatentBank
from cpc.losses.engine.score_gradients import add_to_softmax, log_odds_against
from cpc.losses.engine.tiled_loss import mask_unused

TILE_ROWS, TILE_LATENTS = 1024, 4096  # 16 MiB of float32 scores


class Partition(NamedTuple):
    """The sums of all rows.

    Attributes:
        log_odds: log Z minus the positive's score.
        highest: highest score.
        num_ties: number of latents that tie with the positive or score higher.
        mean_latent: d log Z / d q; None if it is not needed.
    """

    log_odds: Tensor
    highest: Tensor
    num_ties: Tensor
    mean_latent: Tensor | None


@torch.no_grad()
def partition_sums(
    queries: Float[Tensor, "M D"],
    bank: LatentBank,
    positive_scores: Float[Tensor, " M"],
    tie_width: Float[Tensor, " M"],
    sequence_id: Int[Tensor, " M"] | None,
    needs_gradient: bool,
) -> Partition:
    """Return the sums over the bank. Queries have the dtype of scores, and are already divided by the temperature.

    A latent ties if its score is at most `tie_width` below the positive's score. Latents of a row's `sequence_id` are
    left out, unless the id is -1 or `sequence_id` is None.
    """
    tiles = []
    for start in range(0, len(queries), TILE_ROWS):
        rows = slice(start, start + TILE_ROWS)
        own = None if sequence_id is None else rearrange(sequence_id[rows], "m -> m 1")
        tiles.append(_sum_tile(queries[rows], bank, positive_scores[rows], tie_width[rows], own, needs_gradient))
    log_odds, highest, num_ties, mean_latent = zip(*tiles, strict=True)
    sums = torch.cat(log_odds), torch.cat(highest), torch.cat(num_ties)
    return Partition(*sums, torch.cat(mean_latent) if needs_gradient else None)


def _sum_tile(
    queries: Tensor,
    bank: LatentBank,
    positive_scores: Tensor,
    tie_width: Tensor,
    own: Tensor | None,
    needs_gradient: bool,
) -> Partition:
    """Return the sums of a tile of rows; while latents are read, sums are relative to the highest score so far."""
    lowest_tie = positive_scores - tie_width
    highest = torch.full_like(rearrange(positive_scores, "m -> m 1"), -torch.inf)
    total = torch.zeros_like(highest)
    num_ties = torch.zeros_like(positive_scores, dtype=torch.long)
    mean_latent = torch.zeros_like(queries) if needs_gradient else None
    for indices in bank.tiles(TILE_LATENTS):
        latents = bank.latents[indices].to(queries)
        scores = queries @ latents.T
        if own is not None:
            is_own = (own == bank.sequence_id[indices].to(queries.device)) & (own >= 0)
            if bool(is_own.any()):
                is_used = ~is_own.all(0)
                latents = mask_unused(latents, lambda is_used=is_used: is_used)
                scores.masked_fill_(is_own, -torch.inf)
        best = scores.amax(1)
        can_tie = best >= lowest_tie  # few rows of a trained critic need this
        if bool(can_tie.any()):
            num_ties[can_tie] += (scores[can_tie] >= rearrange(lowest_tie[can_tie], "m -> m 1")).sum(1)
        highest, total, shrink, weights = add_to_softmax(scores, rearrange(best, "m -> m 1"), highest, total)
        if mean_latent is not None:
            mean_latent = torch.addmm(mean_latent * shrink, weights, latents)
    if mean_latent is not None:
        mean_latent /= total.clamp(min=1)
    highest, total = highest[:, 0], total[:, 0]
    return Partition(log_odds_against(positive_scores, highest, total.log()), highest, num_ties, mean_latent)
