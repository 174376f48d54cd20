"""The latents of all ranks as candidates, with gradients that return to the rank of each latent.

There are W ranks; rank r has the rows R_r. A row i has the weight w_i = 1 / (steps x rows of its step on all ranks) in
the loss L of the whole batch, and rank r computes

    L_r = W * sum over i in R_r of w_i l_i,    L = mean over r of L_r.

A row depends on latents of every rank, so the gradient of a latent is the sum over ranks s of dL_s / dz. The forward
pass gathers latents; the backward pass sums and scatters their gradients. Each rank then has its part of the gradient
of sum over s of L_s = W L. DDP and FSDP take the mean over ranks, which is the gradient of L for any W.

A observations of all ranks, B of this rank, L latents of each, N latents that can be candidates.
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
from cpc.losses.candidate_sets import Share
from cpc.losses.engine import score_dtype
from cpc.losses.sequences import Sequences, check_identities, sequences_of, targets_of
from cpc.predictors import Output

_NUM_AT_ONCE = 256  # number of observations of a rank that fit into one message of identities


class Gathered(NamedTuple):
    """Latents and identities of all ranks, in the order of the ranks.

    Attributes:
        candidates: `[N, D]`; only the latents of this rank if `share.is_apart`.
        sequences: lengths and identities of all A observations.
        share: the observations of this rank.
    """

    candidates: Tensor
    sequences: Sequences
    share: Share


def gather(output: Output, batch: Batch, strategies: tuple[str, ...] = ("mixed",)) -> Gathered:
    """Gather the latents that queries predict, and the identities of their sequences, from all ranks.

    Only identities are gathered if these strategies need no latents of other ranks. Every rank of the default process
    group must call this at the same time. Ranks may have different numbers of observations. Observations without
    `sequence_id` are all distinct.

    Raises:
        ValueError: if lengths or identities are not one integer for each observation. On every rank: if the latents of
            the ranks differ in shape, only some ranks have a `sequence_id`, or a strategy needs speakers that are
            unknown.
    """
    latents = targets_of(output)
    if not _has_other_ranks():
        share = Share(0, (len(latents),), True)
        return Gathered(rearrange(latents, "b l d -> (b l) d"), sequences_of(output, batch), share)
    own = (output.num_latents, batch.sequence_id, batch.group_id)
    check_identities(len(latents), *own)
    nums, ids = _exchange_identities(output.latents.shape, own, output.is_known)
    sequences = Sequences.of((sum(nums), latents.shape[1]), *ids)
    is_apart = not any(_needs_other_ranks(strategy, nums, sequences) for strategy in strategies)
    if not is_apart:
        latents = _remove_padding(_Gather.apply(_padded(latents, max(nums))), nums)
    return Gathered(rearrange(latents, "b l d -> (b l) d"), sequences, Share(dist.get_rank(), tuple(nums), is_apart))


def _exchange_identities(
    shape: torch.Size, own: tuple[Tensor | None, ...], is_known: Tensor | None
) -> tuple[list[int], tuple[Tensor | None, ...]]:
    """Return the number of observations of each rank, and lengths, ids and known latents of all.

    One collective is enough unless a rank has many observations, or latents are missing. Under load, each collective
    takes a millisecond or two, whatever its size.
    """
    num_latents = shape[1:-1].numel()
    defaults = (num_latents, -1, -1)
    ids = torch.stack(
        [torch.full(shape[:1], none) if each is None else each.cpu() for each, none in zip(own, defaults, strict=True)],
        1,
    )
    header = torch.tensor([*shape, own[1] is not None, is_known is not None])
    first = _padded(ids[:_NUM_AT_ONCE], _NUM_AT_ONCE)
    messages = rearrange(_all_gather(torch.cat([header, first.flatten()])), "(w n) -> w n", w=dist.get_world_size())
    headers, all_ids = messages.split([len(header), first.numel()], 1)
    *shapes, has_id, has_missing = headers.unbind(1)
    _check(torch.stack(shapes[1:], 1), has_id)
    nums = shapes[0].tolist()
    all_ids = _all_gather(_padded(ids, max(nums))) if max(nums) > _NUM_AT_ONCE else all_ids.reshape(-1, len(own))
    lengths, sequence_id, group_id = _remove_padding(all_ids, nums).unbind(1)
    known = None
    if bool(has_missing.any()):
        known = torch.ones(shape[0], num_latents, dtype=torch.bool) if is_known is None else is_known.cpu()
        known = _remove_padding(_all_gather(_padded(known.byte(), max(nums))), nums).bool()
    return nums, (lengths, sequence_id if bool(has_id.all()) else None, group_id, known)


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


def _needs_other_ranks(strategy: str, nums: list[int], sequences: Sequences) -> bool:
    """Return whether some sequence has candidates on another rank; the result is the same on all ranks."""
    rank = torch.arange(len(nums)).repeat_interleave(torch.tensor(nums))
    ids = (strategy, torch.ones_like(rank), sequences.sequence_id, sequences.group_id)
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


def _check(shapes: Int[Tensor, "W _"], has_sequence_id: Int[Tensor, " W"]) -> None:
    if bool((shapes != shapes[0]).any()):
        raise ValueError(
            f"the latents of the ranks have the shapes {', '.join(map(str, shapes.tolist()))} per observation, but "
            "must have the same shape to be candidates of each other: give all ranks windows of one length, and pad "
            "shorter ones (num_valid)"
        )
    if bool((has_sequence_id != has_sequence_id[0]).any()):
        raise ValueError("only some ranks have a sequence_id for their observations: give it on all ranks, or on none")
