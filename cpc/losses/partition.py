"""The exact partition of queries over a bank of any size, in tiles, with its gradient from the same pass.

Z(q) = sum over latents of exp(q . z). The gradient of its log is the softmax's mean latent, which adds up beside the
sum as in online softmax (Milakov and Gimelshein 2018, arXiv:1805.02867): two products, one pass over the bank. Beside
inputs and outputs it takes the memory of a tile's scores; latents come to the queries' device and dtype tile by tile.

M queries (rows), n latents of the bank, D latent dim; m counts a tile's rows.
"""

from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from cpc.candidates.bank import LatentBank
from cpc.losses.slopes import log_odds_against, without_denormals
from cpc.losses.tiled_loss import only_met
from cpc.losses.tiles import slices

TILE_ROWS, TILE_LATENTS = 1024, 4096  # 16 MiB of float32 scores


def log_partition(
    queries: Float[Tensor, "M D"],
    bank: LatentBank,
    positive_scores: Float[Tensor, " M"],
    tie_width: Float[Tensor, " M"],
    sequence_id: Int[Tensor, " M"] | None = None,
) -> tuple[Float[Tensor, " M"], Float[Tensor, " M"], Int[Tensor, " M"]]:
    """Log Z less the positive's score, which alone carries gradients; the best score; how many tie with the positive.

    Args:
        queries: divided by the temperature already, float32 or float64.
        bank: the latents.
        positive_scores: what Z is relative to.
        tie_width: how far from these a tie may lie.
        sequence_id: latents of this sequence are left out; -1: none. None: none at all.
    """
    return _LogPartition.apply(queries, bank, positive_scores, tie_width, sequence_id)


class _LogPartition(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        bank: LatentBank,
        positive_scores: Tensor,
        tie_width: Tensor,
        sequence_id: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        needs_gradient = ctx.needs_input_grad[0]
        log_odds, highest = torch.empty_like(positive_scores), torch.empty_like(positive_scores)
        num_ties = torch.empty_like(positive_scores, dtype=torch.long)
        mean_latent = torch.zeros_like(queries if needs_gradient else queries[:0])
        for rows in slices(len(queries), TILE_ROWS):
            found = _Rows(queries[rows], positive_scores[rows], tie_width[rows], needs_gradient)
            for places in bank.tiles(TILE_LATENTS):
                is_own = None
                if sequence_id is not None:
                    own = rearrange(sequence_id[rows], "m -> m 1")
                    is_own = (own == bank.sequence_id[places].to(queries.device)) & (own >= 0)
                found.add(bank.latents[places].to(queries), is_own)
            highest[rows], num_ties[rows] = found.highest, found.num_ties
            log_odds[rows] = log_odds_against(positive_scores[rows], found.highest, found.total.log())
            if found.mean_latent is not None:
                mean_latent[rows] = found.mean_latent / rearrange(found.total.clamp(min=1), "m -> m 1")
        ctx.save_for_backward(mean_latent)
        ctx.mark_non_differentiable(highest, num_ties)
        return log_odds, highest, num_ties

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (mean_latent,) = ctx.saved_tensors
        return mean_latent * rearrange(gradients[0], "m -> m 1"), None, -gradients[0], None, None


class _Rows:
    """Sums of a tile of rows over the latents met so far, relative to the best score so far."""

    def __init__(self, queries: Tensor, positive_scores: Tensor, tie_width: Tensor, needs_gradient: bool) -> None:
        self.queries = queries
        self.lowest_tie, self.highest_tie = positive_scores - tie_width, positive_scores + tie_width
        self.highest = torch.full_like(positive_scores, -torch.inf)
        self.total = torch.zeros_like(positive_scores)
        self.num_ties = torch.zeros_like(positive_scores, dtype=torch.long)
        self.mean_latent = torch.zeros_like(queries) if needs_gradient else None

    def add(self, latents: Tensor, is_own: Tensor | None) -> None:
        scores = self.queries @ latents.T
        if is_own is not None and bool(is_own.any()):
            latents = only_met(latents, lambda: ~is_own.all(0))
            scores.masked_fill_(is_own, -torch.inf)
        best = scores.amax(1)
        can_tie = best >= self.lowest_tie  # few rows of a trained critic
        if bool(can_tie.any()):
            lowest, highest = (rearrange(end[can_tie], "m -> m 1") for end in (self.lowest_tie, self.highest_tie))
            near = scores[can_tie]
            self.num_ties[can_tie] += ((near >= lowest) & (near <= highest)).sum(1)
        highest = torch.maximum(self.highest, best)
        finite = highest.clamp(min=torch.finfo(scores.dtype).min)  # as long as a row has met nobody: no inf - inf
        weights = without_denormals(scores.sub_(rearrange(finite, "m -> m 1")).exp_())
        shrink = (self.highest - finite).exp()
        self.total = self.total * shrink + weights.sum(1)
        if self.mean_latent is not None:
            self.mean_latent = torch.addmm(self.mean_latent * rearrange(shrink, "m -> m 1"), weights, latents)
        self.highest = highest
