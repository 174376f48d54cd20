"""The latents of all ranks as candidates, with gradients that return to the rank of each latent.

There are W ranks; rank r has the rows R_r. A row i has the weight w_i = 1 / (steps x rows of its step on all ranks) in
the loss L of the whole batch, and rank r computes

    L_r = W * sum over i in R_r of w_i l_i,    L = mean over r of L_r.

A row depends on latents of every rank, so the gradient of a latent is the sum over ranks s of dL_s / dz. The forward
pass gathers latents; the backward pass sums and scatters their gradients. Each rank then has its part of the gradient
of sum over s of L_s = W L. DDP and FSDP take the mean over ranks, which is the gradient of L for any W.

A observations of all ranks, B of this rank.
"""

import functools
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from einops import rearrange, reduce
from jaxtyping import Bool, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from cpc.candidates.strategies import num_candidates_of
from cpc.data.batch import Batch
from cpc.losses.candidate_sets import RankSlice, check_identities
from cpc.losses.engine import score_dtype
from cpc.predictors import Output

_NUM_AT_ONCE = 256  # number of observations of a rank that fit into one message of identities
_UNKNOWN = {"num_valid": None, "sequence_id": -1, "group_id": -1}  # stand for missing identities; None: no padding


class GatheredBatch(NamedTuple):
    """The predictions of this rank, with the targets and identities of all ranks.

    Attributes:
        output: this rank's queries, and the targets of all ranks, `[A, ...]`.
        batch: this rank's batch, with the lengths and identities of all ranks, `[A]`.
        first: number of observations of the ranks before this one.
        nums: number of observations of each rank.
        is_apart: no row is scored against latents of another rank, so targets were not gathered.
    """

    output: Output
    batch: Batch
    first: int
    nums: list[int]
    is_apart: bool = False

    def rank_slice(self, num_sequences: int) -> RankSlice | None:
        """Return which of the sequences of all ranks belong to this rank; None if there is one rank."""
        if len(self.nums) == 1:
            return None
        first = self.first * num_sequences // len(self.output.latents)
        return RankSlice(first, num_sequences, len(self.nums), self.is_apart)


def gather_batch(output: Output, batch: Batch, strategies: tuple[str, ...] = ("mixed",)) -> GatheredBatch:
    """Gather targets and identities of all ranks, in the order of the ranks. With one rank nothing changes.

    Only identities are gathered if these strategies need no latents of other ranks.

    Every rank of the default process group must call this at the same time. Ranks may have different numbers of
    observations. Observations without `sequence_id` are all distinct.

    Raises:
        ValueError: if lengths or identities are not one integer for each observation. On every rank: if the latents of
            the ranks differ in shape, only some ranks have a `sequence_id`, or a strategy needs speakers that are
            unknown.
    """
    targets = output.latents if output.targets is None else output.targets
    check_identities(len(targets), batch.num_valid, batch.sequence_id, batch.group_id)
    if not _has_other_ranks():
        return GatheredBatch(output, batch, 0, [len(output.latents)])
    shapes, is_given, all_ids = _exchange_identities(
        targets.shape, [getattr(batch, name) for name in _UNKNOWN], batch.is_known is not None
    )
    _check(shapes, is_given[:, 1])
    nums, (*known, has_missing) = shapes[:, 0].tolist(), is_given.any(0).tolist()
    ids: dict[str, Any] = {
        name: each if is_there else None for name, each, is_there in zip(_UNKNOWN, all_ids, known, strict=True)
    }
    ids["is_known"] = _gather_known(batch.is_known, targets.shape[:2], nums) if has_missing else None
    is_apart = not any(
        _needs_other_ranks(strategy, nums, ids["sequence_id"], ids["group_id"]) for strategy in strategies
    )
    if not is_apart:
        output = output._replace(targets=_remove_padding(_Gather.apply(_padded(targets, max(nums))), nums))
    return GatheredBatch(output, batch._replace(**ids), sum(nums[: dist.get_rank()]), nums, is_apart)


def _exchange_identities(
    size: torch.Size, ids: list[Tensor | None], has_missing: bool
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Return, for every rank, shape of targets, which identities it has, whether latents are missing, and ids.

    One collective is enough unless a rank has many observations. Under load, each collective takes a millisecond or
    two, whatever its size.
    """
    id_defaults = zip(ids, _UNKNOWN.values(), strict=True)
    own = torch.stack(
        [torch.full(size[:1], value or size[1]) if each is None else each.cpu() for each, value in id_defaults], 1
    )
    header = torch.tensor([*size, *(each is not None for each in ids), has_missing])
    first = _padded(own[:_NUM_AT_ONCE], _NUM_AT_ONCE)
    messages = rearrange(_all_gather(torch.cat([header, first.flatten()])), "(w n) -> w n", w=dist.get_world_size())
    headers, all_ids = (
        messages[:, : len(header)],
        rearrange(messages[:, len(header) :], "w (a i) -> (w a) i", i=len(ids)),
    )
    nums = headers[:, 0].tolist()
    if max(nums) > _NUM_AT_ONCE:
        all_ids = _all_gather(_padded(own, max(nums)))
    return headers[:, : len(size)], headers[:, len(size) :], _remove_padding(all_ids, nums).unbind(1)


def _gather_known(is_known: Tensor | None, size: torch.Size, nums: list[int]) -> Bool[Tensor, "A T"]:
    """Return the mask of known latents of all ranks. On a rank without a mask all latents are known."""
    own = torch.ones(size, dtype=torch.uint8) if is_known is None else is_known.cpu().to(torch.uint8)
    return _remove_padding(_all_gather(_padded(own, max(nums))), nums).bool()


def gather_row_counts(num_rows: Int[Tensor, " K"]) -> Int[Tensor, "W K"]:
    """Return the number of rows of each rank and step (`[1, K]` with one rank). All ranks must call this together.

    Args:
        num_rows: the counts of this rank, on the host.
    """
    own = rearrange(num_rows, "k -> 1 k")
    return _all_gather(own) if _has_other_ranks() else own


class _Gather(torch.autograd.Function):
    """Gathers vectors in the dtype of scores; their gradients are summed in the same dtype."""

    @staticmethod
    def forward(ctx: Any, own: Tensor) -> Tensor:
        return _all_gather(own).to(score_dtype(own))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        num_ranks = dist.get_world_size()
        if gradient.device.type == "cpu":  # Gloo's reduce-scatter sends twice as much, in three times the time
            received = torch.empty_like(gradient, memory_format=torch.contiguous_format)
            dist.all_to_all_single(received, gradient.contiguous())
            return reduce(received, "(w a) ... -> a ...", "sum", w=num_ranks)
        own = gradient.new_empty(len(gradient) // num_ranks, *gradient.shape[1:])
        dist.reduce_scatter_single(own, gradient.contiguous())
        return own


def _has_other_ranks() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _all_gather(own: Tensor) -> Tensor:
    """Gather tensors of one shape. Tensors on the host stay there, so that the host does not wait for a GPU."""
    gathered = own.new_empty(dist.get_world_size() * len(own), *own.shape[1:])
    group = _host_group(dist.group.WORLD) if own.device.type == "cpu" else None
    dist.all_gather_single(gathered, own.contiguous(), group=group)
    return gathered


@functools.cache
def _host_group(world: dist.ProcessGroup) -> dist.ProcessGroup:
    """Return a group of the same ranks with a backend for tensors on the host; NCCL accepts only tensors on a GPU."""
    if "cpu:" in dist.get_backend_config(world):
        return world
    host_group = dist.new_group(backend="gloo")
    assert isinstance(host_group, dist.ProcessGroup)  # a number if this rank is outside
    return host_group


def _needs_other_ranks(strategy: str, nums: list[int], sequence_id: Tensor | None, group_id: Tensor | None) -> bool:
    """Return whether some sequence has candidates on another rank; the result is the same on all ranks."""
    rank = torch.arange(len(nums)).repeat_interleave(torch.tensor(nums))
    ones, sequence_id = torch.ones_like(rank), torch.arange(len(rank)) if sequence_id is None else sequence_id
    ids = (strategy, ones, sequence_id, group_id)
    return not torch.equal(num_candidates_of(*ids), num_candidates_of(*ids, within=rank))


def _padded(own: Tensor, num: int) -> Tensor:
    """Append zeros up to `num` observations, since collectives take tensors of one shape."""
    return own if len(own) == num else torch.cat([own, own.new_zeros(num - len(own), *own.shape[1:])])


def _remove_padding(gathered: Tensor, nums: list[int]) -> Tensor:
    """Remove the observations that `_padded` appended on each rank."""
    most = len(gathered) // len(nums)
    if min(nums) == most:
        return gathered
    index = torch.cat([rank * most + torch.arange(num) for rank, num in enumerate(nums)])
    return gathered.index_select(0, index.to(gathered.device, non_blocking=True))


def _check(shapes: Tensor, has_sequence_id: Tensor) -> None:
    latent_shapes = shapes[:, 1:]
    if bool((latent_shapes != latent_shapes[0]).any()):
        raise ValueError(
            f"the latents of the ranks have the shapes {', '.join(map(str, latent_shapes.tolist()))} per observation, "
            "but must have the same shape to be candidates of each other: give all ranks windows of one length, and "
            "pad shorter ones (num_valid)"
        )
    if bool((has_sequence_id != has_sequence_id[0]).any()):
        raise ValueError("only some ranks have a sequence_id for their observations: give it on all ranks, or on none")
