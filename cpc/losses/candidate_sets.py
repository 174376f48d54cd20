"""Which rows of a batch are scored against which candidates: worked out on the host before any score is computed.

The candidate sets depend on lengths, identities and the strategy. They fix the shapes of all later arithmetic.
Candidates come from the sequences of all ranks; this rank predicts a slice of these sequences.

K steps, B sequences that are predicted, S sequences that give candidates, T latents of each, M rows, N = S T
candidates, R drawn negatives.
"""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cpc.candidates.draws import NegativePool, draw_excess_nats, one_pool
from cpc.candidates.strategies import (
    allowed_matrix,
    check_num_valid,
    identities_read,
    includes_own_sequence,
    num_candidates_of,
)
from cpc.data.tensors import check_tensor
from cpc.losses.definition import CandidateSet
from cpc.losses.engine import Block, split_scores
from cpc.losses.rows import rows_mask, rows_of


class Sequences(NamedTuple):
    """Lengths and identities of sequences, on the host.

    Attributes:
        num_valid: number of latents that are signal. All further latents of a sequence are padding, which is neither
            target nor candidate.
        sequence_id: id of each sequence; sequences that may overlap share an id.
        group_id: speaker of each sequence, -1 if unknown; None: all are unknown.
        is_known: `[B, T]`, True for a known latent; unknown latents are treated as padding. None: all are known.
    """

    num_valid: Tensor
    sequence_id: Tensor
    group_id: Tensor | None = None
    is_known: Tensor | None = None

    @classmethod
    def of(
        cls,
        size: tuple[int, int],
        num_valid: Int[Tensor, " B"] | None = None,
        sequence_id: Int[Tensor, " B"] | None = None,
        group_id: Int[Tensor, " B"] | None = None,
        is_known: Bool[Tensor, "B T"] | None = None,
    ) -> "Sequences":
        """Return the sequences of a batch of `size` (B, T).

        If an argument is None, no sequence has padding, all sequences are distinct, all speakers are unknown, or all
        latents are known.

        Raises:
            ValueError: if an argument is not one integer for each sequence, `is_known` not one boolean for each latent,
                or `num_valid` counts more latents than there are.
        """
        num_sequences, num_latents = size
        check_identities(num_sequences, num_valid, sequence_id, group_id)
        num_valid, sequence_id, group_id = copy_to_host(num_valid, sequence_id, group_id)
        if num_valid is None:
            num_valid = torch.full((num_sequences,), num_latents)
        check_num_valid(num_valid, num_latents)
        sequences = cls(num_valid, torch.arange(num_sequences) if sequence_id is None else sequence_id, group_id)
        if is_known is None:
            return sequences
        check_tensor("is_known", is_known, "booleans", size)
        is_known = is_known.cpu()
        # Equal lengths without missing latents share a candidate set.
        has_missing = bool((sequences.is_valid(num_latents) & ~is_known).any())
        return sequences._replace(is_known=is_known) if has_missing else sequences

    def is_valid(self, num_latents: int) -> Bool[Tensor, "B T"]:
        """Return the mask of the latents that can be targets and candidates: known latents that are not padding."""
        mask = torch.arange(num_latents) < rearrange(self.num_valid, "b -> b 1")
        return mask if self.is_known is None else mask & self.is_known

    def cache_key(self) -> tuple[Any, ...]:
        """Return all that a candidate set depends on: lengths, equalities of identities, and the mask of known latents.

        An identity is replaced by the index of the first sequence that has it; -1 (unknown) stays.
        """
        group_id = None
        if self.group_id is not None:
            group_id = tuple(_first_index(self.group_id).masked_fill(self.group_id < 0, -1).tolist())
        is_known = None if self.is_known is None else tuple(map(tuple, self.is_known.tolist()))
        return tuple(self.num_valid.tolist()), tuple(_first_index(self.sequence_id).tolist()), group_id, is_known


class RankSlice(NamedTuple):
    """The sequences that this rank predicts, among those of all ranks.

    Attributes:
        first: index of the first sequence.
        num: B.
        num_ranks: number of ranks that share the sequences.
        is_apart: True if no row is scored against latents of another rank; each rank then holds only its own latents.
    """

    first: int
    num: int
    num_ranks: int
    is_apart: bool = False

    def select(self, sequences: Sequences) -> Sequences:
        """Return the sequences of this rank."""
        own = slice(self.first, self.first + self.num)
        return Sequences(*(None if each is None else each[own] for each in sequences))  # type: ignore[arg-type]


class RowDraws(NamedTuple):
    """The source of the negatives of each row. It is the same in all training steps with the same candidate set.

    Attributes:
        pool: the possible negatives of each row.
        num_rows_before: number of rows of the ranks before this one. A row is counted from there, so that no two ranks
            draw alike.
        shared_pool: the candidates of each (b, t) that has rows, if the steps share draws; None: they do not.
        shared_index: `[M]` index of the (b, t) of each row.
        num_shared_before: number of (b, t) with rows of the ranks before this one.
    """

    pool: NegativePool
    num_rows_before: int = 0
    shared_pool: NegativePool | None = None
    shared_index: Tensor | None = None
    num_shared_before: int = 0


def plan(
    strategy: str,
    sequences: Sequences,
    num_latents: int,
    steps: tuple[int, ...],
    rank_slice: RankSlice | None = None,
    num_negatives: int | None = None,
    shared_across_steps: bool = False,
    device: torch.device | None = None,
) -> CandidateSet:
    """Return the candidate set of a batch. A row is a step k and a t with valid z_t and z_{t+k}.

    The candidates of a row are its positive and all valid latents of the allowed sequences, the same for every k.
    Batches with the same lengths, equal identities and known latents share one candidate set, so that nothing is copied
    to the device again. The last eight sets are kept: a CUDA graph must hold the set that it reads. If latents are
    unknown, rows without a negative are left out.

    Args:
        strategy: which sequences' latents are candidates, a name in `cpc.candidates.STRATEGIES`.
        sequences: the sequences of all ranks.
        num_latents: T.
        steps: the K steps k, in increasing order.
        rank_slice: the sequences that are predicted; None: all.
        num_negatives: number of negatives to draw per row, with `draw_row_negatives`; None: all.
        shared_across_steps: draw once per (b, t) for all steps, as CPC_audio does. If the draw is z_{t+k}, it is drawn
            again for step k, so that the draws of each step stay uniform over its negatives.
        device: device of the candidate set; None: the host.

    Raises:
        ValueError: the errors of `check_rows` for the sequences of all ranks, so that all ranks raise them. If latents
            are unknown, the only error is that the batch has no row.
    """
    sequence_id, group_id = identities_read(strategy, sequences.sequence_id, sequences.group_id)
    identities = sequences._replace(sequence_id=sequence_id, group_id=group_id)
    draws = None if num_negatives is None else (num_negatives, shared_across_steps)
    device = torch.device("cpu") if device is None else device
    return _plan(strategy, identities.cache_key(), num_latents, steps, rank_slice, draws, device)


@functools.lru_cache(maxsize=8)
@torch.inference_mode(False)
def _plan(
    strategy: str,
    cache_key: tuple[Any, ...],
    num_latents: int,
    steps: tuple[int, ...],
    rank_slice: RankSlice | None,
    draws: tuple[int, bool] | None,
    device: torch.device,
) -> CandidateSet:
    sequences = Sequences(*(None if ids is None else torch.tensor(ids) for ids in cache_key))  # type: ignore[arg-type]
    has_row = rows_mask(sequences.is_valid(num_latents), steps)  # [S, T, K]
    if sequences.is_known is None:
        check_rows(strategy, *sequences[:3], nearest=steps[0])
    else:
        has_row = _rows_with_negatives(strategy, has_row, sequences)
    own = sequences if rank_slice is None else rank_slice.select(sequences)
    sources, first = (own, 0) if rank_slice is None or rank_slice.is_apart else (sequences, rank_slice.first)
    own_rows = has_row if rank_slice is None else has_row[rank_slice.first :][: rank_slice.num]
    query_index, step, sequence, target_index = rows_of(own_rows, steps)
    positive_index = first * num_latents + target_index
    allowed = allowed_matrix(strategy, *own[1:3], *sources[1:3])
    is_valid = sources.is_valid(num_latents)
    candidate_sequence = repeat(torch.arange(len(is_valid)), "s -> (s t)", t=num_latents)
    candidate_mask = rearrange(rearrange(allowed, "b s -> b s 1") & is_valid, "b s t -> b (s t)")
    blocks = split_scores(candidate_mask, allowed, sequence, candidate_sequence, positive_index)
    size = (len(steps), len(own.num_valid), num_latents)
    planned = assemble(query_index, step, sequence, positive_index, candidate_mask, blocks, size)
    if rank_slice is not None:  # weights count the rows of all sequences
        planned = planned._replace(weight=rank_slice.num_ranks * row_weights(step, has_row.sum((0, 1))))
    if draws is not None:
        num_negatives, is_shared = draws
        before = has_row[: 0 if rank_slice is None else rank_slice.first]
        planned = planned._replace(
            draws=_row_draws(planned, before, is_shared),
            draw_excess_nats=draw_excess_nats(num_negatives, planned.num_negatives),
        )
    return planned.on(device)


def _row_draws(rows: CandidateSet, before: Bool[Tensor, "S T K"], is_shared: bool) -> RowDraws:
    """Return the source of the draws. `before` marks the rows of the sequences of the ranks before this one."""
    pool = NegativePool.of(rows.candidate_mask, rows.sequence, rows.positive_index)
    draws = RowDraws(pool, int(before.sum()))
    if not is_shared:
        return draws
    assert rows.query_index is not None
    num_steps, _, num_latents = rows.size
    time, index = torch.unique_consecutive(rows.query_index // num_steps, return_inverse=True)
    shared_pool = NegativePool.of(rows.candidate_mask, time // num_latents, None)
    return RowDraws(*draws[:2], shared_pool, index, int(before.any(2).sum()))


def _rows_with_negatives(strategy: str, has_row: Bool[Tensor, "S T K"], sequences: Sequences) -> Bool[Tensor, "S T K"]:
    """Return the rows that have a negative.

    Raises:
        ValueError: if there are none.
    """
    num_known = sequences.is_valid(has_row.shape[1]).sum(1)
    num_candidates = num_candidates_of(strategy, num_known, sequences.sequence_id, sequences.group_id)
    num_negatives = num_candidates - int(includes_own_sequence(strategy))
    has_row = has_row & rearrange(num_negatives > 0, "s -> s 1 1")
    if not bool(has_row.any()):
        raise ValueError(
            f"no row of a batch of {len(num_known)} sequences with {int(num_known.sum())} known latents has a known "
            f"positive and a known negative (negatives={strategy!r}): raise `batch_size`, lengthen the windows, or "
            "cut out long stretches of missing samples"
        )
    return has_row


def assemble(
    query_index: Int[Tensor, " M"] | None,
    step: Int[Tensor, " M"],
    sequence: Int[Tensor, " M"],
    positive_index: Int[Tensor, " M"],
    candidate_mask: Bool[Tensor, "B N"],
    blocks: list[Block],
    size: tuple[int, int, int],
) -> CandidateSet:
    """Return the candidate set of given rows and masks; see `CandidateSet`."""
    masks, mask_index = one_pool(candidate_mask, sequence)
    num_negatives = masks.sum(1)[mask_index] - masks[mask_index, positive_index].long()
    is_used = masks[mask_index.unique()].any(0)
    is_used[positive_index] = True
    return CandidateSet(
        query_index=query_index,
        positive_index=positive_index,
        sequence=sequence,
        candidate_mask=candidate_mask,
        weight=row_weights(step),
        negatives=None,
        step=step,
        num_negatives=num_negatives,
        is_used=None if bool(is_used.all()) else is_used,
        size=size,
        blocks=blocks,
    )


def draw_row_negatives(
    candidate_set: CandidateSet, num: int, generator: torch.Generator | None = None
) -> Int[Tensor, "M R"]:
    """Draw `num` negatives for each row, uniformly with replacement, on the device of the candidate set.

    With the same generator, the negatives of a row are the same whether one process or several ranks draw them.
    """
    draws, device = candidate_set.draws, candidate_set.positive_index.device
    negatives: Tensor = draws.pool.draw(num, generator, device, draws.num_rows_before)
    if draws.shared_pool is None:
        return negatives
    shared = draws.shared_pool.draw(num, generator, device, draws.num_shared_before)[draws.shared_index]
    return torch.where(shared == rearrange(candidate_set.positive_index, "m -> m 1"), negatives, shared)


def row_weights(step: Int[Tensor, " M"], num_rows: Int[Tensor, " K"] | None = None) -> Float[Tensor, " M"]:
    """Return each row's weight in the loss: the mean over the rows of a step, then over the steps that have rows.

    Args:
        step: the step of each row.
        num_rows: number of rows of each step; None: counted from `step`.
    """
    num_rows = torch.bincount(step) if num_rows is None else num_rows
    return 1 / (num_rows[step] * (num_rows > 0).sum()).double()


def check_rows(
    strategy: str,
    num_valid: Int[Tensor, " B"],
    sequence_id: Int[Tensor, " B"],
    group_id: Int[Tensor, " B"] | None = None,
    nearest: int = 1,
) -> None:
    """Raise an error if a batch has no rows, or a row has no negatives; only lengths and identities are read.

    Args:
        strategy: which sequences' latents are candidates.
        num_valid: number of latents of each sequence.
        sequence_id: id of each sequence.
        group_id: speaker of each sequence.
        nearest: the first step.

    Raises:
        ValueError: if no sequence is longer than the first step, or the strategy leaves a row without negatives.
    """
    longest = int(num_valid.max())
    if longest <= nearest:
        raise ValueError(
            f"the longest sequence has {longest} latents, but a prediction {nearest} ahead needs at least "
            f"{nearest + 1}: use longer windows (`window_samples`) or larger images (`image_size`), leave out "
            "such short files, or lower the first of `predictor.steps`"
        )
    num_negatives = num_candidates_of(strategy, num_valid, sequence_id, group_id) - int(includes_own_sequence(strategy))
    has_no_negatives = (num_negatives < 1) & (num_valid > nearest)
    if bool(has_no_negatives.any()):
        raise ValueError(
            f"negatives={strategy!r} leaves {int(has_no_negatives.sum())} of {len(num_valid)} sequences of a batch "
            "without a negative: raise `batch_size`, or, for a same-speaker strategy, choose "
            "`sampler`=same_speaker, which puts several sequences of a speaker in each batch"
        )


def check_identities(num: int, num_valid: Any, sequence_id: Any, group_id: Any) -> None:
    """Raise an error on lengths or identities that are not one integer per observation; values are not read.

    Raises:
        ValueError: if an argument is not one integer for each of `num` observations. The message names the argument.
    """
    for name, ids in (("num_valid", num_valid), ("sequence_id", sequence_id), ("group_id", group_id)):
        if ids is not None:
            check_tensor(name, ids, "integers", (num,))


def copy_to_host(*ids: Tensor | None) -> Iterator[Tensor | None]:
    """Return tensors of one shape on the CPU, copied by one transfer, so that the host waits for a GPU only once."""
    present = [each for each in ids if each is not None]
    moved = iter(torch.stack(present).cpu() if any(each.device.type != "cpu" for each in present) else present)
    return (None if each is None else next(moved) for each in ids)


def _first_index(ids: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
    """Return, for each sequence, the index of the first sequence with the same identity."""
    _, index = torch.unique(ids, return_inverse=True)
    return torch.full_like(index, len(ids)).scatter_reduce(0, index, torch.arange(len(ids)), "amin")[index]
