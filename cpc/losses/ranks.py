"""The latents of all ranks as candidates, with gradients that return to the rank of each latent.

There are W ranks; rank r has the rows R_r. A row i has the weight w_i = 1 / (steps x rows of its step on all ranks) in
the loss L of the whole batch, and rank r computes

    L_r = W * sum over i in R_r of w_i l_i,    L = mean over r of L_r.

A row depends on latents of every rank, so the gradient of a latent is the sum over ranks s of dL_s / dz. The forward
pass gathers latents; the backward pass sums and scatters their gradients. Each rank then has its part of the gradient
of sum over s of L_s = W L. DDP and FSDP take the mean over ranks, which is the gradient of L for any W.

A sequences of all ranks, B of this rank, N latents that can be candidates.
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from einops import rearrange, reduce
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from cpc.candidates.strategies import num_candidates_of
from cpc.losses.candidate_sets import Share
from cpc.losses.engine import score_dtype
from cpc.losses.sequences import Sequences

_NUM_AT_ONCE = 256  # number of sequences of a rank that fit into one message of identities


def gather_sequences(sequences: Sequences, strategies: tuple[str, ...]) -> tuple[Sequences, Share]:
    """Return the sequences of all ranks, in the order of the ranks, and the share of this rank for these strategies.

    Every rank of the default process group must call this at the same time. Ranks may have different numbers of
    sequences.
    """
    num, geometry = len(sequences.num_latents), sequences.geometry
    if not _has_other_ranks():
        return sequences, Share(0, (num,), True)
    given = (sequences.num_latents, sequences.sequence_id, sequences.group_id)
    ids = torch.stack([torch.full((num,), -1) if each is None else each for each in given], 1)
    header = torch.tensor([num, *geometry.shape, given[1] is not None, sequences.is_known is not None])
    # One collective is enough unless a rank has many sequences, or latents are missing. Under load, each collective
    # takes a millisecond or two, whatever its size.
    first = _padded(ids[:_NUM_AT_ONCE], _NUM_AT_ONCE)
    messages = rearrange(_all_gather(torch.cat([header, first.flatten()])), "(w n) -> w n", w=dist.get_world_size())
    headers, all_ids = messages.split([len(header), first.numel()], 1)
    shapes = headers[:, 1:-2]
    if bool((shapes != shapes[0]).any()):
        found = ", ".join(map(str, shapes.tolist()))
        raise ValueError(f"the sequences of the ranks have the shapes {found} in latents: pad them to one length")
    if bool((headers[:, -2] != headers[0, -2]).any()):
        raise ValueError("only some ranks have a sequence_id: give it on all ranks, or on none")
    nums = headers[:, 0].tolist()
    all_ids = _all_gather(_padded(ids, max(nums))) if max(nums) > _NUM_AT_ONCE else all_ids.reshape(-1, 3)
    num_latents, all_sequence_ids, group_id = _remove_padding(all_ids, nums).unbind(1)
    is_known = None
    if bool(headers[:, -1].any()):
        known = sequences.is_known
        is_known = torch.ones(num, geometry.num_latents, dtype=torch.bool) if known is None else known
        is_known = _remove_padding(_all_gather(_padded(is_known.byte(), max(nums))), nums).bool()
    sequence_id = None if sequences.sequence_id is None else all_sequence_ids
    everyone = Sequences(geometry, num_latents, sequence_id, group_id, is_known, *sequences[5:])
    is_apart = not any(_needs_other_ranks(strategy, nums, everyone) for strategy in strategies)
    return everyone, Share(dist.get_rank(), tuple(nums), is_apart)


def gather_latents(latents: Float[Tensor, "B ... D"], share: Share) -> Float[Tensor, "N D"]:
    """Return the latents of all ranks as candidates; those of this rank if it is apart. All ranks call this together.

    Gradients return to the rank of each latent.
    """
    if not share.is_apart:
        latents = _remove_padding(_Gather.apply(_padded(latents, max(share.nums))), share.nums)
    return rearrange(latents, "b ... d -> (b ...) d")


def gather_integers(own: Int[Tensor, " K"]) -> Int[Tensor, "W K"]:
    """Return the integers of each rank, given those of this rank. All ranks must call this together."""
    own = rearrange(own, "k -> 1 k")
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


def _needs_other_ranks(strategy: str, nums: Sequence[int], sequences: Sequences) -> bool:
    """Return whether some sequence has candidates on another rank; the result is the same on all ranks."""
    rank = torch.arange(len(nums)).repeat_interleave(torch.tensor(nums))
    ids = (strategy, torch.ones_like(rank), sequences.ids, sequences.group_id)
    return not torch.equal(num_candidates_of(*ids), num_candidates_of(*ids, within=rank))


def _padded(own: Tensor, num: int) -> Tensor:
    """Append zeros up to `num` observations, since collectives take tensors of one shape."""
    return own if len(own) == num else torch.cat([own, own.new_zeros(num - len(own), *own.shape[1:])])


def _remove_padding(gathered: Tensor, nums: Sequence[int]) -> Tensor:
    """Remove the observations that `_padded` appended on each rank."""
    most = len(gathered) // len(nums)
    if min(nums) == most:
        return gathered
    index = torch.cat([rank * most + torch.arange(num) for rank, num in enumerate(nums)])
    return gathered.index_select(0, index.to(gathered.device, non_blocking=True))
