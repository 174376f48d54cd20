"""The exact partition of queries over a bank of any size, in tiles, with its gradient from the same pass.

Z(q) = sum over latents of exp(q . z). The gradient of its log is the softmax's mean latent, which adds up beside the
sum as in online softmax (Milakov and Gimelshein 2018, arXiv:1805.02867): two products, one pass over the bank.

M queries (rows), n latents of the bank, D latent dim; m counts a tile's rows.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from cpc.candidates.bank import LatentBank
from cpc.losses.blocks import only_met
from cpc.losses.slopes import log_odds_against

TILE_ROWS, TILE_LATENTS = 1024, 4096  # 16 MiB of float32 scores


class Partition(NamedTuple):
    """Of each row, over the latents that it meets; only `log_odds` carries gradients.

    Attributes:
        log_odds: `[M]`, against the positive: log Z less its score; -inf where a row meets none.
        highest: `[M]`, the best score.
        num_ties: `[M]`, how many score as the positive.
        num_met: `[M]`.
    """

    log_odds: Tensor
    highest: Tensor
    num_ties: Tensor
    num_met: Tensor


def log_partition(
    queries: Float[Tensor, "M D"],
    bank: LatentBank,
    positive_scores: Float[Tensor, " M"],
    tie_width: Float[Tensor, " M"],
    *,
    sequence_id: Int[Tensor, " M"] | None = None,
    targets: Int[Tensor, " M"] | None = None,
) -> Partition:
    """Sum exp(q . z) over the bank, but for a row's own sequence and its own target.

    The memory beside inputs and outputs is that of a tile's scores. Latents are moved to the queries' device and dtype
    a tile at a time.

    Args:
        queries: divided by the temperature already, float32 or float64.
        bank: the latents.
        positive_scores: what Z is relative to, and ties are counted with.
        tie_width: how far from it a tie may lie.
        sequence_id: latents of this sequence are left out; -1: none. None: none at all.
        targets: this latent is left out; -1: none. None: none at all.
    """
    return Partition(*_LogPartition.apply(queries, bank, positive_scores, tie_width.detach(), sequence_id, targets))


class _LogPartition(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        bank: LatentBank,
        positive_scores: Tensor,
        tie_width: Tensor,
        sequence_id: Tensor | None,
        targets: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        needs_gradient = ctx.needs_input_grad[0]
        log_odds, highest = torch.empty_like(positive_scores), torch.empty_like(positive_scores)
        num_ties = torch.zeros_like(positive_scores, dtype=torch.long)
        num_met = torch.full_like(num_ties, len(bank))
        mean_latent = torch.zeros_like(queries if needs_gradient else queries[:0])
        for start in range(0, len(queries), TILE_ROWS):
            rows = slice(start, start + TILE_ROWS)
            found = _Rows(queries[rows], positive_scores[rows], tie_width[rows], needs_gradient)
            for places in bank.tiles(TILE_LATENTS):
                left_out = _left_out(
                    places,
                    bank.sequence_id[places].to(queries.device),
                    None if sequence_id is None else sequence_id[rows],
                    None if targets is None else targets[rows],
                )
                if left_out is not None:
                    num_met[rows] -= left_out.sum(1)
                found.add(bank.latents[places].to(queries), left_out)
            highest[rows], num_ties[rows] = found.highest, found.num_ties
            log_odds[rows] = log_odds_against(positive_scores[rows], found.highest, found.total.log())
            if found.mean_latent is not None:
                mean_latent[rows] = found.mean_latent / rearrange(found.total.clamp(min=1), "m -> m 1")
        ctx.save_for_backward(mean_latent)
        ctx.mark_non_differentiable(highest, num_ties, num_met)
        return log_odds, highest, num_ties, num_met

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (mean_latent,) = ctx.saved_tensors
        return mean_latent * rearrange(gradients[0], "m -> m 1"), None, -gradients[0], None, None, None


class _Rows:
    """Sums of a tile of rows over the latents met so far, relative to the best score so far."""

    def __init__(self, queries: Tensor, positive_scores: Tensor, tie_width: Tensor, needs_gradient: bool) -> None:
        self.queries = queries
        self.lowest_tie, self.highest_tie = positive_scores - tie_width, positive_scores + tie_width
        self.highest = torch.full_like(positive_scores, -torch.inf)
        self.total = torch.zeros_like(positive_scores)
        self.num_ties = torch.zeros_like(positive_scores, dtype=torch.long)
        self.mean_latent = torch.zeros_like(queries) if needs_gradient else None

    def add(self, latents: Tensor, left_out: Tensor | None) -> None:
        scores = self.queries @ latents.T
        if left_out is not None:
            latents = only_met(latents, lambda: ~left_out.all(0))
            scores.masked_fill_(left_out, -torch.inf)
        best = scores.amax(1)
        can_tie = best >= self.lowest_tie  # few rows of a trained critic
        if bool(can_tie.any()):
            lowest, highest = (rearrange(end[can_tie], "m -> m 1") for end in (self.lowest_tie, self.highest_tie))
            near = scores[can_tie]
            self.num_ties[can_tie] += ((near >= lowest) & (near <= highest)).sum(1)
        highest = torch.maximum(self.highest, best)
        finite = highest.clamp(min=torch.finfo(scores.dtype).min)  # as long as a row has met nobody: no inf - inf
        weights = scores.sub_(rearrange(finite, "m -> m 1")).exp_()
        # products with denormal numbers are slow, and far below what the sum resolves
        weights = F.threshold(weights, torch.finfo(scores.dtype).tiny ** 0.7, 0.0, inplace=True)
        shrink = (self.highest - finite).exp()
        self.total = self.total * shrink + weights.sum(1)
        if self.mean_latent is not None:
            self.mean_latent = torch.addmm(self.mean_latent * rearrange(shrink, "m -> m 1"), weights, latents)
        self.highest = highest


def _left_out(
    places: slice,
    of_latent: Int[Tensor, " N"],
    sequence_id: Int[Tensor, " m"] | None,
    targets: Int[Tensor, " m"] | None,
) -> Tensor | None:
    """`[m, N]` where a row does not meet a latent; None: nowhere."""
    left_out = None
    if sequence_id is not None:
        sequence_id = rearrange(sequence_id, "m -> m 1")
        left_out = (sequence_id == of_latent) & (sequence_id >= 0)
    if targets is not None:
        place = torch.arange(places.start, places.stop, device=targets.device)
        is_target = rearrange(targets, "m -> m 1") == place
        left_out = is_target if left_out is None else left_out | is_target
    return left_out if left_out is not None and bool(left_out.any()) else None
