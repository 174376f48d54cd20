"""The latents of all ranks as candidates, with gradients back to the rank that each comes from.

W ranks, rank r with the rows R_r. A row i weighs w_i = 1 / (steps x rows of its step on all ranks) in the loss L of the
whole batch, and rank r computes that of its own rows:

    L_r = W * sum over i in R_r of w_i l_i,    L = mean over r of L_r.

A row depends on latents of every rank, so the gradient of a latent is the sum over s of dL_s / dz: what is gathered on
the way forth is summed and scattered on the way back. Then backward gives each rank its part of the gradient of
sum over s of L_s = W L, and the mean over ranks, which DDP and FSDP take, is the gradient of L: the same at any W.

A observations of all ranks, B of this one.
"""

import functools
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from einops import rearrange, reduce
from jaxtyping import Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from cpc.candidates.strategies import num_candidates_of
from cpc.data.batch import Batch
from cpc.losses.candidate_sets import RankSlice
from cpc.losses.engine.tiled_loss import score_dtype
from cpc.predictors import Output

_NUM_AT_ONCE = 256  # observations of a rank whose identities travel in one message
_UNKNOWN = {"num_valid": None, "sequence_id": -1, "group_id": -1}  # where only other ranks know; None: whole sequences


class GatheredBatch(NamedTuple):
    """What this rank predicts, and what all ranks lend.

    Attributes:
        output: this rank's queries, with the targets of all ranks, `[A, ...]`.
        batch: this rank's, with the lengths and identities of all ranks, `[A]`.
        first: how many observations the ranks before this one have.
        nums: how many each rank has.
        is_apart: no rank meets latents of another: targets stayed where they are.
    """

    output: Output
    batch: Batch
    first: int
    nums: list[int]
    is_apart: bool = False

    def part(self, num_sequences: int) -> RankSlice | None:
        """Where the `num_sequences` of this rank are among those of all ranks; None: there is one rank."""
        if len(self.nums) == 1:
            return None
        first = self.first * num_sequences // len(self.output.latents)
        return RankSlice(first, num_sequences, len(self.nums), self.is_apart)


def gather_batch(
    output: Output, batch: Batch, strategies: tuple[str, ...] = ("mixed",), exchange: str = "gather"
) -> GatheredBatch:
    """Gather targets and identities, the ranks' one after the other; as they are without other ranks.

    Identities alone where no sequence meets those of another rank by these strategies, and with `exchange="ring"`,
    where targets pass by later (`cpc.losses.engine.ring`).

    Every rank of the default process group must call it at the same time. Ranks may have different numbers of
    observations. Observations without `sequence_id` are all distinct.

    Raises:
        ValueError: on every rank, if their latents differ in shape, some have no `sequence_id`, or a strategy needs
            speakers that are unknown.
    """
    if not _has_other_ranks():
        return GatheredBatch(output, batch, 0, [len(output.latents)])
    targets = output.latents if output.targets is None else output.targets
    shapes, is_known, of_all = _announced(targets.shape, [getattr(batch, name) for name in _UNKNOWN])
    _check(shapes, is_known[:, 1])
    nums, known = shapes[:, 0].tolist(), is_known.any(0).tolist()
    ids: dict[str, Any] = {
        name: each if is_there else None for name, each, is_there in zip(_UNKNOWN, of_all, known, strict=True)
    }
    is_apart = not any(_meet(strategy, nums, ids["sequence_id"], ids["group_id"]) for strategy in strategies)
    if exchange == "gather" and not is_apart:
        output = output._replace(targets=_in_order(_Gather.apply(_padded(targets, max(nums))), nums))
    return GatheredBatch(output, batch._replace(**ids), sum(nums[: dist.get_rank()]), nums, is_apart)


def _announced(size: torch.Size, ids: list[Tensor | None]) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Of every rank the shape of its targets, which identities it knows, and all identities: mostly by one collective.

    Under load, each one takes a millisecond or two, whatever its size.
    """
    of_own = zip(ids, _UNKNOWN.values(), strict=True)
    own = torch.stack(
        [torch.full(size[:1], value or size[1]) if each is None else each.cpu() for each, value in of_own], 1
    )
    about = torch.tensor([*size, *(each is not None for each in ids)])
    first = _padded(own[:_NUM_AT_ONCE], _NUM_AT_ONCE)
    told = rearrange(_gathered(torch.cat([about, first.flatten()])), "(w n) -> w n", w=dist.get_world_size())
    about, of_all = told[:, : len(about)], rearrange(told[:, len(about) :], "w (a i) -> (w a) i", i=len(ids))
    nums = about[:, 0].tolist()
    if max(nums) > _NUM_AT_ONCE:
        of_all = _gathered(_padded(own, max(nums)))
    return about[:, : len(size)], about[:, len(size) :], _in_order(of_all, nums).unbind(1)


def rows_of_all_ranks(num_rows: Int[Tensor, " K"]) -> Int[Tensor, "W K"]:
    """How many rows each rank has of each step; `[1, K]` without other ranks. Every rank must ask at the same time.

    Args:
        num_rows: this rank's, on the host.
    """
    own = rearrange(num_rows, "k -> 1 k")
    return _gathered(own) if _has_other_ranks() else own


class _Gather(torch.autograd.Function):
    """Ranks' vectors in the dtype of scores, in which their gradients are summed too."""

    @staticmethod
    def forward(ctx: Any, own: Tensor) -> Tensor:
        return _gathered(own).to(score_dtype(own))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        num_ranks = dist.get_world_size()
        if gradient.device.type == "cpu":  # Gloo's reduce-scatter sends twice as much, and takes three times as long
            of_ranks = torch.empty_like(gradient, memory_format=torch.contiguous_format)
            dist.all_to_all_single(of_ranks, gradient.contiguous())
            return reduce(of_ranks, "(w a) ... -> a ...", "sum", w=num_ranks)
        own = gradient.new_empty(len(gradient) // num_ranks, *gradient.shape[1:])
        dist.reduce_scatter_single(own, gradient.contiguous())
        return own


def _has_other_ranks() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _gathered(own: Tensor) -> Tensor:
    """Where they are: what the host has stays there, so that it waits for no kernel of a GPU."""
    of_all = own.new_empty(dist.get_world_size() * len(own), *own.shape[1:])
    group = _of_hosts(dist.group.WORLD) if own.device.type == "cpu" else None
    dist.all_gather_single(of_all, own.contiguous(), group=group)
    return of_all


@functools.cache
def _of_hosts(world: dist.ProcessGroup) -> dist.ProcessGroup:
    """The same ranks, by a backend that takes tensors of the host: NCCL does not."""
    if "cpu:" in dist.get_backend_config(world):
        return world
    of_hosts = dist.new_group(backend="gloo")
    assert isinstance(of_hosts, dist.ProcessGroup)  # or a number, on a rank outside of it
    return of_hosts


def _meet(strategy: str, nums: list[int], sequence_id: Tensor | None, group_id: Tensor | None) -> bool:
    """Whether some sequence meets one of another rank; all ranks answer the same."""
    rank = torch.arange(len(nums)).repeat_interleave(torch.tensor(nums))
    one_each, sequence_id = torch.ones_like(rank), torch.arange(len(rank)) if sequence_id is None else sequence_id
    ids = (strategy, one_each, sequence_id, group_id)
    return not torch.equal(num_candidates_of(*ids), num_candidates_of(*ids, within=rank))


def _padded(own: Tensor, num: int) -> Tensor:
    """Zeros up to `num` observations: collectives take tensors of one shape."""
    return own if len(own) == num else torch.cat([own, own.new_zeros(num - len(own), *own.shape[1:])])


def _in_order(of_all: Tensor, nums: list[int]) -> Tensor:
    """Without the padding."""
    most = len(of_all) // len(nums)
    if min(nums) == most:
        return of_all
    places = torch.cat([rank * most + torch.arange(num) for rank, num in enumerate(nums)])
    return of_all.index_select(0, places.to(of_all.device, non_blocking=True))


def _check(shapes: Tensor, has_sequence_id: Tensor) -> None:
    of_each = shapes[:, 1:]
    if bool((of_each != of_each[0]).any()):
        raise ValueError(
            f"the ranks have latents of the shapes {', '.join(map(str, of_each.tolist()))} per observation, which meet "
            "each other as candidates: give all ranks windows of one length, padded where they are shorter (num_valid)"
        )
    if bool((has_sequence_id != has_sequence_id[0]).any()):
        raise ValueError(
            "some ranks have a sequence_id for their observations and some have none: give it on all ranks, or on none"
        )
