"""The loss of queries with their targets' vectors and drawn candidates' vectors, gradients formed in the forward pass.

As in `cpc.losses.fused`, only a tile of rows of the M x N scores ever exists where all queries share the candidates.

M queries (rows), T targets of each, N candidates, D dims; m counts a tile's rows.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from cpc.losses.blocks import only_met
from cpc.losses.products import Products
from cpc.losses.slopes import rank_accuracy
from cpc.losses.terms import TERMS
from cpc.losses.tiles import row_slices, tile_rows


class ClassLoss(NamedTuple):
    """The loss of each row with its company; only `loss` carries gradients.

    Attributes:
        loss: scalar, nats: the mean of `loss_nats`, or their sum with the weights that were given.
        loss_nats: `[M]`.
        num_candidates: `[M]`, the row's targets and the candidates that it met besides.
        accuracy: `[M]`, [no candidate scores higher than the best target] / (1 + ties), by the plain scores F, which is
            how classes are ranked without a sampler. Scores that differ by no more than rounding are ties.
    """

    loss: Tensor
    loss_nats: Tensor
    num_candidates: Tensor
    accuracy: Tensor


class Shifts(NamedTuple):
    """How scores F become what the loss sees, G = F - shift: nothing in here gets a gradient.

    Attributes:
        targets: `[M, T]`; +inf: the row has fewer targets.
        candidates: `[N]` or `[M, N]`; +inf: the row does not meet it. None: no shift at all.
        weights: of the candidates' terms in a logistic loss, of the shape of `candidates`; None: 1.
        own: `[M, T]` places of a row's targets among the candidates, which it does not meet as such; None: nowhere.
        hits: `[M, N]`, candidates that are targets of the row and were kept: the accuracy passes them over; None: none.
    """

    targets: Tensor
    candidates: Tensor | None = None
    weights: Tensor | None = None
    own: Tensor | None = None
    hits: Tensor | None = None

    def to(self, dtype: torch.dtype) -> "Shifts":
        """The same in the scores' dtype."""
        targets, candidates, weights = (None if each is None else each.to(dtype) for each in self[:3])
        assert targets is not None
        return Shifts(targets, candidates, weights, self.own, self.hits)


def candidate_loss(
    queries: Float[Tensor, "M D"],
    targets: Float[Tensor, "M T D"],
    candidates: Float[Tensor, "N D"] | Float[Tensor, "M N D"],
    *,
    form: str,
    shifts: Shifts,
    target_bias: Float[Tensor, "M T"] | None = None,
    candidate_bias: Float[Tensor, " N"] | Float[Tensor, "M N"] | None = None,
    weight: Float[Tensor, " M"] | None = None,
) -> ClassLoss:
    """Contrast targets with candidates, given as vectors: from a table, a queue, a bank, or anywhere.

    F = query . vector + bias. Scores and sums are float32 (float64 for float64 queries) whatever the autocast dtype.

    Args:
        queries: divided by the temperature already.
        targets: the vectors of each row's targets.
        candidates: those that all rows meet, or each row's own.
        form: a name in `cpc.losses.terms.TERMS`.
        shifts: what is subtracted from scores, and who is not there.
        target_bias: added to the targets' scores.
        candidate_bias: added to the candidates'.
        weight: of each row in `loss`; None: 1 / M.
    """
    dtype = torch.float64 if queries.dtype == torch.float64 else torch.float32
    with torch.autocast(queries.device.type, enabled=False):
        queries, targets, candidates = queries.to(dtype), targets.to(dtype), candidates.to(dtype)
        targets = only_met(targets, lambda: shifts.targets < torch.inf)
        met = shifts.candidates
        if met is not None:
            shared = met.ndim == candidates.ndim  # [M, N] with [N, D]
            candidates = only_met(candidates, lambda: (met < torch.inf).any(0) if shared else met < torch.inf)
        target_scores = torch.einsum("md,mtd->mt", queries, targets)
        width = tie_width(queries, targets, target_bias)
        if target_bias is not None:
            target_scores = target_scores + target_bias
        num_rows = len(queries)
        weight = queries.new_full((num_rows,), 1 / num_rows) if weight is None else weight.to(dtype)
        bias = None if candidate_bias is None else candidate_bias.to(dtype)
        inputs: list[Tensor | None] = [queries, candidates, bias, target_scores]
        if not torch.is_grad_enabled():  # else a parameter would ask for its gradient even so
            inputs = [None if each is None else each.detach() for each in inputs]
        shifts = shifts.to(dtype)
        loss, loss_nats, accuracy = MeanCandidateLoss.apply(*inputs, weight, shifts, form, width)
    return ClassLoss(loss, loss_nats, _num_candidates(candidates, shifts), accuracy)


class MeanCandidateLoss(torch.autograd.Function):
    """`(queries, candidates, bias, target scores, weight, shifts, form, tie width)` -> (weighted loss, row losses,
    accuracy).
    """

    @staticmethod
    def forward(  # noqa: D102 (the class says it)
        ctx: Any,
        queries: Tensor,
        candidates: Tensor,
        bias: Tensor | None,
        target_scores: Tensor,
        weight: Tensor,
        shifts: Shifts,
        form: str,
        width: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        products = (_OwnCandidates if candidates.ndim == 3 else _SharedCandidates)(candidates, len(queries))
        gradients = [
            torch.zeros_like(each) if each is not None and needed else None
            for each, needed in zip((queries, candidates, bias, target_scores), ctx.needs_input_grad, strict=False)
        ]
        of_queries, of_candidates, of_bias, of_targets = gradients
        loss_nats, accuracy = torch.empty_like(weight), torch.empty_like(weight, dtype=torch.float32)
        for rows in products.tiles():
            scores = products.scores(queries[rows], rows)
            if bias is not None:
                scores += _of_rows(bias, rows)
            if shifts.own is None:
                of_tile = target_scores[rows]
            else:
                of_tile = scores.gather(1, shifts.own[rows])  # from the same product: equal scores are equal
                scores.scatter_(1, shifts.own[rows], -torch.inf)
            accuracy[rows] = _remove(scores, shifts, rows, of_tile, width[rows])
            if shifts.candidates is not None:
                scores -= _of_rows(shifts.candidates, rows)
            weights = None if shifts.weights is None else _of_rows(shifts.weights, rows)
            terms = TERMS[form](scores, of_tile - shifts.targets[rows], weights)
            loss_nats[rows] = terms.loss
            scale = rearrange(weight[rows] * terms.factor, "m -> m 1")
            if of_queries is not None:
                of_queries[rows] = products.query_gradient(terms.slopes, rows) * scale
            if of_candidates is not None:
                products.add_candidate_gradient(terms.slopes, queries[rows] * scale, of_candidates, rows)
            if of_bias is not None:
                products.add_bias_gradient(terms.slopes, scale, of_bias, rows)
            if of_targets is not None:
                of_targets[rows] = terms.target_slopes * rearrange(weight[rows], "m -> m 1")
        ctx.has_gradient = [each is not None for each in gradients]
        ctx.save_for_backward(*(each for each in gradients if each is not None))
        ctx.mark_non_differentiable(loss_nats, accuracy)
        return torch.dot(weight, loss_nats), loss_nats, accuracy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: D102
        saved = iter(ctx.saved_tensors)
        # most often the mean itself is differentiated; to look at the factor would make a GPU wait
        is_one = gradients[0].device.type == "cpu" and gradients[0] == 1
        found = (next(saved) if has else None for has in ctx.has_gradient)
        return *(each if each is None or is_one else each * gradients[0] for each in found), None, None, None, None


class _SharedCandidates:
    """Products with candidates `[N, D]` that all rows meet, a tile of rows at a time."""

    def __init__(self, candidates: Tensor, num_rows: int) -> None:
        self.products, self.num_rows = Products(candidates), num_rows
        self.scratch = candidates.new_empty(tile_rows(num_rows, len(candidates)), len(candidates))

    def tiles(self) -> Iterator[slice]:
        return row_slices(self.num_rows, len(self.scratch))

    def scores(self, queries: Tensor, rows: slice) -> Tensor:
        return self.products.scores(queries, out=self.scratch[: len(queries)])

    def query_gradient(self, slopes: Tensor, rows: slice) -> Tensor:
        return self.products.query_gradient(slopes)

    def add_candidate_gradient(self, slopes: Tensor, queries: Tensor, total: Tensor, rows: slice) -> None:
        self.products.add_candidate_gradient(slopes, queries, total)

    def add_bias_gradient(self, slopes: Tensor, scale: Tensor, total: Tensor, rows: slice) -> None:
        total.addmv_(slopes.T, scale[:, 0])


class _OwnCandidates:
    """Products with each row's own candidates `[M, N, D]`: gathered already, they are larger than all scores."""

    def __init__(self, candidates: Tensor, num_rows: int) -> None:
        self.candidates, self.num_rows = candidates, num_rows

    def tiles(self) -> Iterator[slice]:
        return row_slices(self.num_rows, self.num_rows)

    def scores(self, queries: Tensor, rows: slice) -> Tensor:
        return torch.einsum("md,mnd->mn", queries, self.candidates[rows])

    def query_gradient(self, slopes: Tensor, rows: slice) -> Tensor:
        return torch.einsum("mn,mnd->md", slopes, self.candidates[rows])

    def add_candidate_gradient(self, slopes: Tensor, queries: Tensor, total: Tensor, rows: slice) -> None:
        torch.mul(rearrange(slopes, "m n -> m n 1"), rearrange(queries, "m d -> m 1 d"), out=total[rows])

    def add_bias_gradient(self, slopes: Tensor, scale: Tensor, total: Tensor, rows: slice) -> None:
        total[rows] = slopes * scale


def _of_rows(of_candidates: Tensor, rows: slice) -> Tensor:
    """`[1, N]` or `[m, N]`: of shared candidates, or of a tile's rows."""
    return rearrange(of_candidates, "n -> 1 n") if of_candidates.ndim == 1 else of_candidates[rows]


def _remove(scores: Tensor, shifts: Shifts, rows: slice, target_scores: Tensor, width: Tensor) -> Tensor:
    """Give those that a row does not meet a score of minus infinity; returns the accuracy `[m]` among the rest."""
    if shifts.candidates is not None:
        scores.masked_fill_(_of_rows(shifts.candidates, rows) == torch.inf, -torch.inf)
    best_target = target_scores.masked_fill(shifts.targets[rows] == torch.inf, -torch.inf).amax(1, keepdim=True)
    others = scores if shifts.hits is None else scores.masked_fill(shifts.hits[rows], -torch.inf)
    return rank_accuracy(best_target, others.amax(1, keepdim=True), others, rearrange(width, "m -> m 1"))


def tie_width(
    queries: Float[Tensor, "M D"], targets: Float[Tensor, "M T D"], bias: Float[Tensor, "M T"] | None = None
) -> Float[Tensor, " M"]:
    """How far scores may lie from the targets' and yet be equal: products of different shapes round differently."""
    longest = torch.linalg.vector_norm(queries, dim=1) * torch.linalg.vector_norm(targets, dim=2).amax(1)
    if bias is not None:
        longest = longest + bias.abs().amax(1)
    return 16 * torch.finfo(queries.dtype).eps * longest.detach()


def _num_candidates(candidates: Tensor, shifts: Shifts) -> Int[Tensor, " M"]:
    num_targets = (shifts.targets < torch.inf).sum(1)
    if shifts.own is not None:  # each target is one of the candidates
        return torch.full_like(num_targets, len(candidates))
    if shifts.candidates is None:
        return num_targets + candidates.shape[-2]
    return num_targets + (shifts.candidates < torch.inf).sum(-1)
