"""InfoNCE against the latents of all ranks, in memory for the latents of two ranks.

Latents go round the ring of ranks twice (after Inf-CL, Cheng et al. 2024, arXiv:2410.17243). In the first round each
rank adds up the exponentials of its rows' scores, as in online softmax. In the second round each rank computes the
scores again, now with known sums. The gradients of latents travel with the latents until both return to the rank that
owns them.

W ranks; M rows of this rank, B sequences of its rows, N latents of all ranks, n latents of the rank that has most, D
latent dim.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.distributed as dist
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from cpc.losses.definition import CandidateSet
from cpc.losses.engine.anchor import Anchor, anchored_loss
from cpc.losses.engine.blocks import Block
from cpc.losses.engine.score_gradients import (
    ONE_FACTOR,
    TWO_FACTORS,
    accuracy_of,
    add_to_softmax,
    flush_denormals,
    log_odds_against,
    loss_and_factor,
    tie_width,
)
from cpc.losses.engine.tiled_loss import attach_gradients, mask_unused, score_dtype
from cpc.losses.engine.tiles import SharedTiles, choose_tiles
from cpc.losses.output import RowLosses


class RingState(NamedTuple):
    """Sizes, blocks and padding of the latents of each rank, for the ring exchange.

    Attributes:
        nums: number of latents of each rank.
        blocks: for each rank, the blocks of the score matrix with the latents of that rank. The first latent of every
            rank has the index 0.
        is_valid: which latents of this rank are known and not padding.
    """

    nums: list[int]
    blocks: list[list[Block]]
    is_valid: Bool[Tensor, " n"]

    @classmethod
    def of(
        cls, candidate_set: CandidateSet, nums: list[int], is_valid: Bool[Tensor, "B T"], device: torch.device
    ) -> "RingState":
        """Split a candidate set on the host, with the latents of all ranks, by rank, and move the blocks to a device.

        `nums` counts the latents of each rank; `is_valid` marks the latents of this rank's sequences that exist.
        """
        by_rank = [
            [block.on(device) for block in _blocks_of_rank(candidate_set.blocks, nums, rank)]
            for rank in range(len(nums))
        ]
        return cls(nums, by_rank, is_valid.flatten().to(device, non_blocking=True))


def ring_loss(
    queries: Float[Tensor, "Q D"],
    latents: Float[Tensor, "_ D"],
    candidate_set: CandidateSet,
    ring: RingState,
    compute: str,
    anchor: Anchor | None = None,
) -> RowLosses:
    """Return the losses of this rank's rows against the latents of all ranks; all ranks call it at the same time.

    Queries, latents and rows are those of this rank; queries are in the order (b t k). Gradients of latents are sums
    over ranks, as in `cpc.losses.ranks`. They are computed in the forward pass, so all ranks must differentiate the
    same function of their losses, such as a mean.
    """
    dtype, nums = score_dtype(queries), ring.nums
    # Queries or latents may need no gradient: with a frozen encoder only the predictor learns.
    needs = [torch.is_grad_enabled() and each.requires_grad for each in (queries, latents)]
    gradients: list[Tensor | None] = [None, None]
    own = mask_unused(latents.detach().to(dtype), lambda: ring.is_valid)
    held = torch.cat([own, own.new_zeros(max(nums) - len(own), own.shape[1])])
    weight = candidate_set.weight.to(dtype)
    with torch.no_grad(), torch.autocast(queries.device.type, enabled=False):
        rows = _Rows(queries.detach().to(dtype), candidate_set, compute, anchor)
        for rank, (received,) in _round(held):
            for block in ring.blocks[rank]:
                rows.add_scores(block, received[: nums[rank]])
        loss_nats, accuracy = rows.losses()
        if any(needs):
            queries_grad = torch.zeros_like(rows.queries)
            for rank, (received, received_grad) in _round(held, torch.zeros_like(held)):
                for block in ring.blocks[rank]:
                    part = slice(nums[rank])
                    rows.add_gradients(block, received[part], weight, queries_grad, received_grad[part])
            latents_grad = _send_on([received_grad]).wait()[0][: len(latents)]
            gradients = [each if has else None for each, has in zip((queries_grad, latents_grad), needs, strict=True)]
        loss = torch.dot(weight, rows.objective)
    loss = attach_gradients(loss, (queries, latents), gradients)
    return RowLosses(loss, loss_nats, candidate_set.num_negatives + 1, accuracy)


class _Rows:
    """This rank's rows, with running sums over the candidates received so far.

    Attributes:
        queries: `[Q, D]`.
        query_index: `[M]` index of each row's query.
        target: `[M, 1]` scores of positives. Positives are latents of this rank, which come first in the ring.
        best: `[M, 1]` highest score of a negative.
        total: `[M, 1]` sum of exp(score - best) over negatives.
        width: `[M, 1]` largest difference from `target` of a score that ties.
        num_ties: `[M, 1]` number of negatives that tie with the positive or score higher.
        left_out: `[M, 1]` scores of the negatives that the anchor leaves out; `best` and `total` are without them.
    """

    def __init__(self, queries: Tensor, candidate_set: CandidateSet, compute: str, anchor: Anchor | None) -> None:
        self.queries, self.compute, self.anchor, num_rows = queries, compute, anchor, len(candidate_set.step)
        index = candidate_set.query_index
        self.query_index = torch.arange(num_rows, device=queries.device) if index is None else index
        self.target = queries.new_zeros(num_rows, 1)
        self.best, self.left_out = (torch.full_like(self.target, -torch.inf) for _ in range(2))
        self.total, self.num_ties, self.width = (torch.zeros_like(self.target) for _ in range(3))

    def add_scores(self, block: Block, latents: Tensor) -> None:
        """Add the scores of a block of one rank's latents to the sums."""
        for rows, scores, own, left_out, tiles in self._tiles(block, latents):
            if own is not None:
                self.target[rows] = scores.gather(1, own)
                self.width[rows] = tie_width(self.queries[self.query_index[rows]], tiles.candidates[own].norm(dim=-1))
                scores.scatter_(1, own, -torch.inf)
            self.num_ties[rows] += (scores >= self.target[rows] - self.width[rows]).sum(1, keepdim=True)
            if left_out is not None:
                is_here, column = left_out >= 0, left_out.clamp(min=0)
                found = scores.gather(1, column)
                self.left_out[rows] = found.where(is_here, self.left_out[rows])
                scores.scatter_(1, column, found.masked_fill(is_here, -torch.inf))
            best = scores.amax(1, keepdim=True)
            self.best[rows], self.total[rows], _, _ = add_to_softmax(scores, best, self.best[rows], self.total[rows])

    def losses(self) -> tuple[Tensor, Tensor]:
        """Return losses and accuracies `[M]`; call it after all latents were received."""
        self.log_total = self.best + self.total.log()
        if self.anchor is None:
            loss_nats, self.factor = loss_and_factor(log_odds_against(self.target, self.best, self.total.log()))
            self.target_grad, objective = -torch.ones_like(loss_nats), loss_nats
        else:
            sums = (self.target, self.left_out, self.best, self.total.log())
            objective, loss_nats, factor, self.target_grad, self.left_out_grad = anchored_loss(*sums, self.anchor)
            # The factor belongs only to the other negatives, and is part of their exponents.
            self.log_total = torch.where(factor > 0, self.log_total - factor.log(), torch.inf)
            self.factor = torch.ones_like(factor)
        self.objective = objective[:, 0]
        accuracy = accuracy_of(self.target, torch.maximum(self.best, self.left_out), self.num_ties, self.width)
        return loss_nats[:, 0], accuracy[:, 0]

    def add_gradients(
        self, block: Block, latents: Tensor, weight: Tensor, queries_grad: Tensor, latents_grad: Tensor
    ) -> None:
        """Add the gradients of the queries and of one rank's latents, in place; `weight` is that of the rows."""
        columns = block.columns
        total = latents_grad if columns is None else torch.zeros_like(latents[columns])
        power = TWO_FACTORS if self.anchor is None else ONE_FACTOR
        for rows, scores, own, left_out, tiles in self._tiles(block, latents):
            score_grads = flush_denormals(scores.sub_(self.log_total[rows]).exp_(), power)
            if own is not None:
                score_grads.scatter_(1, own, self.target_grad[rows])
            if left_out is not None:
                column = left_out.clamp(min=0)
                grad = self.left_out_grad[rows].where(left_out >= 0, score_grads.gather(1, column))
                score_grads.scatter_(1, column, grad)
            row_weight = rearrange(weight[rows], "m -> m 1") * self.factor[rows]
            index = self.query_index[rows]
            queries_grad[index] += tiles.query_gradient(score_grads) * row_weight
            tiles.add_candidate_gradient(score_grads, self.queries[index] * row_weight, total)
        if columns is not None:
            latents_grad.index_add_(0, columns, total)

    def _tiles(
        self, block: Block, latents: Tensor
    ) -> Iterator[tuple[Tensor, Tensor, Tensor | None, Tensor | None, SharedTiles]]:
        """Yield rows, their scores (-inf: not a candidate), and the tiles.

        Between them are the columns of positives, and of the negatives that are left out.
        """
        assert block.rows is not None
        vectors = latents if block.columns is None else latents[block.columns]
        tiles = choose_tiles(len(block.rows), vectors, None, None, self.compute)
        assert isinstance(tiles, SharedTiles)
        for tile in tiles.rows():
            rows = block.rows[tile]
            own, left_out = (each if each is None else each[tile] for each in (block.positives, block.left_out))
            scores = tiles.scores(self.queries[self.query_index[rows]], tile)
            if block.candidate_mask is not None and block.sequence is not None:
                mask = block.candidate_mask[block.sequence[tile]]
                scores.masked_fill_(~(mask if own is None else mask.scatter(1, own, True)), -torch.inf)
            yield rows, scores, own, left_out, tiles


def _blocks_of_rank(blocks: list[Block], nums: list[int], rank: int) -> Iterator[Block]:
    """Yield the parts of blocks with one rank's latents, counted from 0. Only this rank's latents have positives."""
    start = sum(nums[:rank])
    stop = start + nums[rank]
    for block in blocks:
        if block.columns is None:
            chosen: slice | Tensor = slice(start, stop)
            columns, first, num = None, start, nums[rank]
        else:
            chosen = ((block.columns >= start) & (block.columns < stop)).nonzero()[:, 0]
            if len(chosen) == 0:
                continue
            columns, first, num = block.columns[chosen] - start, int(chosen[0]), len(chosen)
        assert block.positives is not None
        rows = torch.arange(len(block.positives)) if block.rows is None else block.rows
        is_own = rank == dist.get_rank()
        mask = None if block.candidate_mask is None else block.candidate_mask[:, chosen]
        own = block.positives - first if is_own else None
        left_out = None
        if block.left_out is not None:
            left_out = block.left_out - first
            left_out.masked_fill_((left_out < 0) | (left_out >= num), -1)
        yield Block(rows, columns, own, mask, block.sequence, left_out=left_out)


def _round(*held: Tensor) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
    """Yield each rank and its tensors, this rank first. Tensors are sent on with the changes that the caller made."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    for stage in range(num_ranks):
        is_last = stage == num_ranks - 1
        ahead = None if is_last else _send_on([held[0]])  # sends while this rank computes
        yield (rank - stage) % num_ranks, held
        if ahead is not None:
            behind = _send_on(list(held[1:]))
            held = (*ahead.wait(), *behind.wait())


class _Transfer(NamedTuple):
    buffers: list[Tensor]
    works: list[dist.Work]

    def wait(self) -> list[Tensor]:
        for work in self.works:
            work.wait()
        return self.buffers


def _send_on(tensors: list[Tensor]) -> _Transfer:
    """Send tensors to the next rank, and receive those of the previous rank."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    buffers = [torch.empty_like(each) for each in tensors]
    operations = [
        operation
        for sent, buffer in zip(tensors, buffers, strict=True)
        for operation in (
            dist.P2POp(dist.isend, sent, (rank + 1) % num_ranks),
            dist.P2POp(dist.irecv, buffer, (rank - 1) % num_ranks),
        )
    ]
    return _Transfer(buffers, dist.batch_isend_irecv(operations) if operations else [])
