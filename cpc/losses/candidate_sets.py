"""The plan of a batch, rows and the candidates of each, made on the host before any score is computed.

A plan depends on lengths, identities and the strategy, and fixes the shapes of all later arithmetic. Candidates come
from the sequences of all ranks; this rank predicts its own sequences.

B sequences that are predicted, S sequences that give candidates, L latents of each, P places, K distances, M rows.
"""

import functools
from typing import Any, NamedTuple

import torch
from einops import rearrange, reduce
from jaxtyping import Float, Int
from torch import Tensor

from cpc.candidates.draws import RowDraws
from cpc.candidates.strategies import (
    allowed_matrix,
    check_length,
    check_rows,
    identities_read,
    includes_own_sequence,
    num_candidates_of,
)
from cpc.data.tensors import moved
from cpc.losses.definition import CandidateSet
from cpc.losses.engine import on_device
from cpc.losses.sequences import Geometry, Sequences, rows_mask, rows_of


class Share(NamedTuple):
    """The sequences that this rank predicts, among those of all ranks.

    `nums` is the number of sequences of each rank. `is_apart` says that no row is scored against latents of another
    rank; each rank then holds only its own latents.
    """

    rank: int
    nums: tuple[int, ...]
    is_apart: bool = False

    @property
    def own(self) -> slice:
        """The sequences of this rank."""
        first = sum(self.nums[: self.rank])
        return slice(first, first + self.nums[self.rank])


# The rows and candidates of a batch, and the source of drawn negatives (None: all candidates are scored).
Plan = tuple[CandidateSet, RowDraws | None]


def plan(
    strategy: str,
    sequences: Sequences,
    share: Share | None = None,
    num_negatives: int | None = None,
    shared_across_steps: bool = False,
) -> Plan:
    """Return the plan of a batch. There is a row for each query whose place and target are valid latents.

    The candidates of a row are its positive and all valid latents of the allowed sequences, the same for every step.
    Batches with the same lengths, equal identities and known latents share one plan, so that nothing is copied to the
    device again; the last eight plans are kept. If latents are unknown, rows without a negative are left out.

    Args:
        strategy: a name in `cpc.candidates.STRATEGIES`.
        sequences: the sequences of all ranks; the plan is on their device.
        share: the sequences that this rank predicts; None: all.
        num_negatives: number of negatives to draw per row; None: all.
        shared_across_steps: draw once per place for all steps.
    """
    sequence_id, group_id = identities_read(strategy, sequences.ids, sequences.group_id)
    key = sequences._replace(sequence_id=sequence_id, group_id=group_id).cache_key()
    share = Share(0, (len(sequence_id),)) if share is None else share
    draws = None if num_negatives is None else (num_negatives, shared_across_steps)
    return _plan(strategy, key, sequences.geometry, share, draws, sequences.device)


@functools.lru_cache(maxsize=8)
@torch.inference_mode(False)
def _plan(
    strategy: str,
    cache_key: tuple[Any, ...],
    geometry: Geometry,
    share: Share,
    draws: tuple[int, bool] | None,
    device: torch.device,
) -> Plan:
    sequences = Sequences(geometry, *(None if ids is None else torch.tensor(ids) for ids in cache_key))  # type: ignore[arg-type]
    check_length(geometry.shortest, geometry.distances[0])
    has_row = rows_mask(sequences.is_valid, geometry)  # [S, P, K]
    num_known = sequences.is_valid.sum(1)
    if sequences.is_known is None:
        check_rows(strategy, sequences.num_latents, sequences.ids, sequences.group_id, geometry.distances[0])
    else:
        num_candidates = num_candidates_of(strategy, num_known, sequences.ids, sequences.group_id)
        has_row &= rearrange(num_candidates > int(includes_own_sequence(strategy)), "s -> s 1 1")
    if not bool(has_row.any()):
        batch = f"a batch of {len(has_row)} sequences with {int(num_known.sum())} known latents"
        raise ValueError(f"no row of {batch} has a known positive and a known negative (negatives={strategy!r})")
    own = sequences.select(share.own)
    sources, first = (own, 0) if share.is_apart else (sequences, share.own.start)
    query, step, sequence, target = rows_of(has_row[share.own], geometry)
    allowed = allowed_matrix(strategy, own.ids, own.group_id, sources.ids, sources.group_id)
    num_rows = reduce(has_row.sum(0), "(j p) k -> (j k)", "sum", j=len(geometry.directions))
    rows = CandidateSet(
        query_index=query,
        positive_index=first * geometry.num_latents + target,
        sequence=sequence,
        step=step,
        candidate_mask=rearrange(rearrange(allowed, "b s -> b s 1") & sources.is_valid, "b s l -> b (s l)"),
        weight=len(share.nums) * row_weights(step, num_rows),
        num_steps=geometry.num_steps,
    )
    source = None
    if draws is not None:
        before = has_row[: share.own.start]
        source = RowDraws.of(*draws, rows.candidate_mask, sequence, rows.positive_index, query, before)
    return on_device(rows, device), moved(source, device)


def row_weights(step: Int[Tensor, " M"], num_rows: Int[Tensor, " K"]) -> Float[Tensor, " M"]:
    """Return each row's weight in the loss: the mean over the rows of a step, then over the steps that have rows."""
    return 1 / (num_rows[step] * (num_rows > 0).sum()).double()
