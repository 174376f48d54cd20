"""InfoNCE against the latents of all ranks, each holding those of two at a time: memory stays as ranks are added.

Latents go round the ring of ranks twice (after Inf-CL, Cheng et al. 2024, arXiv:2410.17243). The first time each rank
adds up the exponentials of its rows' scores, as in online softmax; the second time it scores them again, now with
known sums, and the latents' gradients travel with them, until both are home.

W ranks; M rows of this one, B sequences of its rows, N latents of all ranks, n of the largest rank, D latent dim.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.distributed as dist
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cpc.losses.candidate_sets import CandidateSet
from cpc.losses.engine.blocks import Block, Blocks
from cpc.losses.engine.score_gradients import (
    OF_TWO,
    accuracy_of,
    flush_denormals,
    log_odds_against,
    loss_and_factor,
    tie_width,
)
from cpc.losses.engine.tiled_loss import attach_gradients, mask_unused, score_dtype
from cpc.losses.engine.tiles import SharedTiles, tiles_of
from cpc.losses.output import RowLosses


class RingState(NamedTuple):
    """What each rank lends.

    Attributes:
        nums: how many latents.
        blocks: of each rank's latents, counted from its first one.
        is_valid: this rank's latents that are no padding.
    """

    nums: list[int]
    blocks: list[list[Block]]
    is_valid: Bool[Tensor, " n"]

    @classmethod
    def of(
        cls, candidate_set: CandidateSet, nums: list[int], num_valid: Int[Tensor, " B"], device: torch.device
    ) -> "RingState":
        """Parts of a plan that is on the host, on a device.

        Args:
            candidate_set: this rank's rows among the latents of all ranks.
            nums: how many latents each rank lends.
            num_valid: of this rank's sequences.
            device: of the latents.
        """
        is_valid = torch.arange(candidate_set.size[2]) < rearrange(num_valid, "b -> b 1")
        of_ranks = [list(_of_rank(candidate_set.blocks.parted(), nums, rank)) for rank in range(len(nums))]
        parts = [Blocks.of(each).on(device).parted() for each in of_ranks]
        return cls(nums, parts, is_valid.flatten().to(device, non_blocking=True))


def ring_loss(
    queries: Float[Tensor, "Q D"],
    latents: Float[Tensor, "_ D"],
    candidate_set: CandidateSet,
    ring: RingState,
    compute: str,
) -> RowLosses:
    """The losses of this rank's rows among the latents of all ranks; every rank calls it at the same time.

    Gradients of latents are sums over ranks, as those of `cpc.losses.ranks` are. They are made in the forward pass:
    all ranks must differentiate the same function of their losses, such as a mean.

    Args:
        queries: of this rank, in the order (b t k).
        latents: of this rank.
        candidate_set: this rank's rows among the latents of all ranks, on the device.
        ring: the state of the exchange.
        compute: see `cpc.losses.info_nce`.
    """
    dtype, nums = score_dtype(queries), ring.nums
    # Either alone is enough: a frozen encoder's latents need no gradient, and its predictor still learns.
    needs = [torch.is_grad_enabled() and each.requires_grad for each in (queries, latents)]
    gradients: list[Tensor | None] = [None, None]
    own = mask_unused(latents.detach().to(dtype), lambda: ring.is_valid)
    held = torch.cat([own, own.new_zeros(max(nums) - len(own), own.shape[1])])
    weight = candidate_set.weight.to(dtype)
    with torch.no_grad(), torch.autocast(queries.device.type, enabled=False):
        rows = _Rows(queries.detach().to(dtype), candidate_set, compute)
        for rank, (received,) in _round(held):
            for block in ring.blocks[rank]:
                rows.sum_up(block, received[: nums[rank]])
        loss_nats, accuracy = rows.read()
        if any(needs):
            queries_grad = torch.zeros_like(rows.queries)
            for rank, (received, received_grad) in _round(held, torch.zeros_like(held)):
                for block in ring.blocks[rank]:
                    rows.add_gradients(block, received[: nums[rank]], weight, queries_grad, received_grad[: nums[rank]])
            latents_grad = _passed_on([received_grad]).arrived()[0][: len(latents)]
            gradients = [each if has else None for each, has in zip((queries_grad, latents_grad), needs, strict=True)]
        loss = torch.dot(weight, loss_nats)
    loss = attach_gradients(loss, (queries, latents), gradients)
    return RowLosses(loss, loss_nats, candidate_set.num_negatives + 1, accuracy)


class _Rows:
    """This rank's rows, and what they have met so far.

    Attributes:
        queries: `[Q, D]`.
        query: `[M]` the place of each row's.
        target: `[M, 1]` scores of positives, which are this rank's own latents: known after the first part.
        best: `[M, 1]` highest score of a negative.
        total: `[M, 1]` sum of exponentials of negatives' scores relative to `best`.
        width: `[M, 1]` how far from `target` a score may lie and tie.
        num_ties: `[M, 1]` negatives that tie with the positive or beat it.
    """

    def __init__(self, queries: Tensor, candidate_set: CandidateSet, compute: str) -> None:
        self.queries, self.compute, num_rows = queries, compute, len(candidate_set.step)
        self.query = (
            torch.arange(num_rows, device=queries.device) if candidate_set.query is None else candidate_set.query
        )
        self.target = queries.new_zeros(num_rows, 1)
        self.best = torch.full_like(self.target, -torch.inf)
        self.total, self.num_ties, self.width = (torch.zeros_like(self.target) for _ in range(3))

    def sum_up(self, block: Block, latents: Tensor) -> None:
        """Meet one rank's latents."""
        for rows, scores, own, tiles in self._tiles(block, latents):
            if own is not None:
                self.target[rows] = scores.gather(1, own)
                self.width[rows] = tie_width(self.queries[self.query[rows]], tiles.candidates[own].norm(dim=-1))
                scores.scatter_(1, own, -torch.inf)
            before = self.best[rows]
            self.num_ties[rows] += (scores >= self.target[rows] - self.width[rows]).sum(1, keepdim=True)
            best = torch.maximum(before, scores.amax(1, keepdim=True))
            finite = best.clamp(min=torch.finfo(best.dtype).min)  # where no negative was met yet: no inf - inf
            added = flush_denormals(scores.sub_(finite).exp_()).sum(1, keepdim=True)
            self.total[rows] = self.total[rows] * (before - finite).exp() + added
            self.best[rows] = best

    def read(self) -> tuple[Tensor, Tensor]:
        """Losses and accuracies `[M]`, when all latents were met."""
        self.log_total = self.best + self.total.log()
        loss_nats, self.factor = loss_and_factor(log_odds_against(self.target, self.best, self.total.log()))
        accuracy = accuracy_of(self.target, self.best, self.num_ties, self.width)
        return loss_nats[:, 0], accuracy[:, 0]

    def add_gradients(
        self, block: Block, latents: Tensor, weight: Tensor, queries_grad: Tensor, latents_grad: Tensor
    ) -> None:
        """Add those of the queries and of one rank's latents; `weight` is the rows'."""
        columns = block.columns
        total = latents_grad if columns is None else torch.zeros_like(latents[columns])
        for rows, scores, own, tiles in self._tiles(block, latents):
            score_gradients = flush_denormals(scores.sub_(self.log_total[rows]).exp_(), OF_TWO)
            if own is not None:
                score_gradients.scatter_(1, own, -1.0)
            row_weight = rearrange(weight[rows], "m -> m 1") * self.factor[rows]
            query = self.query[rows]
            queries_grad[query] += tiles.query_gradient(score_gradients) * row_weight
            tiles.add_candidate_gradient(score_gradients, self.queries[query] * row_weight, total)
        if columns is not None:
            latents_grad.index_add_(0, columns, total)

    def _tiles(self, block: Block, latents: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor | None, SharedTiles]]:
        """Rows, their scores (-inf where they do not meet), the places of their positives, and the way back."""
        assert block.rows is not None
        vectors = latents if block.columns is None else latents[block.columns]
        tiles = tiles_of(len(block.rows), vectors, None, None, self.compute)
        assert isinstance(tiles, SharedTiles)
        for tile in tiles.rows():
            rows, own = block.rows[tile], None if block.positives is None else block.positives[tile]
            scores = tiles.scores(self.queries[self.query[rows]], tile)
            if block.pool is not None and block.sequence is not None:
                is_used = block.pool[block.sequence[tile]]
                scores.masked_fill_(~(is_used if own is None else is_used.scatter(1, own, True)), -torch.inf)
            yield rows, scores, own, tiles


def _of_rank(blocks: list[Block], nums: list[int], rank: int) -> Iterator[Block]:
    """The parts of blocks with one rank's latents, counted from its first; positives where these are its own."""
    start = sum(nums[:rank])
    stop = start + nums[rank]
    for block in blocks:
        if block.columns is None:
            chosen: slice | Tensor = slice(start, stop)
            columns, first = None, start
        else:
            chosen = ((block.columns >= start) & (block.columns < stop)).nonzero()[:, 0]
            if len(chosen) == 0:
                continue
            columns, first = block.columns[chosen] - start, int(chosen[0])
        assert block.positives is not None
        rows = torch.arange(len(block.positives)) if block.rows is None else block.rows
        is_own = rank == dist.get_rank()
        pool = None if block.pool is None else block.pool[:, chosen]
        yield Block(rows, columns, block.positives - first if is_own else None, pool, block.sequence)


def _round(*held: Tensor) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
    """Every rank's tensors, this one's first, with the rank; what is written to those after the first travels on."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    for stage in range(num_ranks):
        is_last = stage == num_ranks - 1
        ahead = None if is_last else _passed_on([held[0]])  # while this rank computes
        yield (rank - stage) % num_ranks, held
        if ahead is not None:
            behind = _passed_on(list(held[1:]))
            held = (*ahead.arrived(), *behind.arrived())


class _Hop(NamedTuple):
    buffers: list[Tensor]
    works: list[dist.Work]

    def arrived(self) -> list[Tensor]:
        for each in self.works:
            each.wait()
        return self.buffers


def _passed_on(tensors: list[Tensor]) -> _Hop:
    """Send tensors to the next rank, and receive those of the one before."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    buffers = [torch.empty_like(each) for each in tensors]
    hops = [
        hop
        for sent, buffer in zip(tensors, buffers, strict=True)
        for hop in (
            dist.P2POp(dist.isend, sent, (rank + 1) % num_ranks),
            dist.P2POp(dist.irecv, buffer, (rank - 1) % num_ranks),
        )
    ]
    return _Hop(buffers, dist.batch_isend_irecv(hops) if hops else [])
