"""Which rows of a batch are scored against which candidates: planned once, on the host, before any score.

It follows from identities, lengths and the strategy; the arithmetic after it has shapes that the plan knows.
Sequences of all ranks lend candidates; those that this rank predicts are a part of them.

K steps, B sequences that are predicted, S that lend candidates, T latents of each, M rows, N = S T candidates, R drawn
negatives; m and n count a block's.
"""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cpc.candidates.draws import NegativePool, one_pool
from cpc.candidates.strategies import (
    allowed_matrix,
    check_num_valid,
    identities_read,
    includes_own_sequence,
    num_candidates_of,
)
from cpc.data.tensors import check_tensor
from cpc.losses.engine.blocks import Blocks, blocks


class Sequences(NamedTuple):
    """Sequences on the host.

    Attributes:
        num_valid: how many latents of each are signal: the rest is padding, neither target nor candidate.
        sequence_id: sequences that may overlap share one.
        group_id: the speaker, -1 where unknown; None: all unknown.
    """

    num_valid: Tensor
    sequence_id: Tensor
    group_id: Tensor | None = None

    @classmethod
    def of(
        cls,
        size: tuple[int, int],
        num_valid: Int[Tensor, " B"] | None = None,
        sequence_id: Int[Tensor, " B"] | None = None,
        group_id: Int[Tensor, " B"] | None = None,
    ) -> "Sequences":
        """The B sequences of T latents of a batch, `size`; None: whole ones, distinct ones, unknown speakers.

        Raises:
            ValueError: on what is not one integer for each sequence, or if `num_valid` counts more latents than there
                are.
        """
        num_sequences, num_latents = size
        check_identities(num_sequences, num_valid, sequence_id, group_id)
        num_valid, sequence_id, group_id = on_host(num_valid, sequence_id, group_id)
        if num_valid is None:
            num_valid = torch.full((num_sequences,), num_latents)
        check_num_valid(num_valid, num_latents)
        return cls(num_valid, torch.arange(num_sequences) if sequence_id is None else sequence_id, group_id)

    def by_first(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...] | None]:
        """What a plan depends on: an identity is the place of the first sequence that has it; -1 stays, as unknown."""
        group_id = None
        if self.group_id is not None:
            group_id = tuple(_place_of_first(self.group_id).masked_fill(self.group_id < 0, -1).tolist())
        return tuple(self.num_valid.tolist()), tuple(_place_of_first(self.sequence_id).tolist()), group_id


class RankSlice(NamedTuple):
    """The sequences that this rank predicts, among those of all ranks.

    Attributes:
        first: place of the first one.
        num: B.
        num_ranks: how many ranks share the sequences.
        is_apart: no rank meets latents of another, and each lends its own alone.
    """

    first: int
    num: int
    num_ranks: int
    is_apart: bool = False

    def of(self, sequences: Sequences) -> Sequences:
        """This rank's."""
        own = slice(self.first, self.first + self.num)
        num_valid, sequence_id, group_id = sequences
        return Sequences(num_valid[own], sequence_id[own], None if group_id is None else group_id[own])


class CandidateSet(NamedTuple):
    """The rows of a batch, in the order (b t k), and the candidates of each.

    Attributes:
        query: `[M]` place of each row's query in the order (b t k); None: each has its own.
        step: `[M]` place of the row's step among the K.
        sequence: `[M]` b.
        positives: `[M]` index of z_{t+k} among the candidates.
        weight: `[M]` of each row in the unweighted mean over steps of the mean over rows of all ranks, times their
            number.
        pool: `[B, N]` candidates that a sequence's rows meet besides their positives.
        num_negatives: `[M]` how many these are.
        is_met: `[N]` candidates that any row meets.
        blocks: the score matrix, parted.
        size: K, B and T.
        num_rows_before: how many rows the ranks before this one have.
        num_times_before: how many (b, t) with rows they have.
        eligible: what each row may draw; None: it is found out when asked.
        ring: the state of the ring exchange; None if the latents of all ranks are gathered.
    """

    query: Tensor | None
    step: Tensor
    sequence: Tensor
    positives: Tensor
    weight: Tensor
    pool: Tensor
    num_negatives: Tensor
    is_used: Tensor
    blocks: Blocks
    size: tuple[int, int, int]
    num_rows_before: int = 0
    num_times_before: int = 0
    eligible: NegativePool | None = None
    ring: Any = None

    def on(self, device: torch.device) -> "CandidateSet":
        """The same on a device, without waiting for it."""
        if device.type == "cpu":
            return self
        moved: dict[str, Any] = {"blocks": self.blocks.on(device)}
        for name, each in zip(self._fields, self[:8], strict=False):
            moved[name] = None if each is None else each.to(device, non_blocking=True)
        return self._replace(**moved)

    def draw(
        self,
        num: int,
        generator: torch.Generator | None = None,
        shared_across_steps: bool = False,
        device: torch.device | None = None,
    ) -> Int[Tensor, "M R"]:
        """Negatives of each row, uniformly with replacement; ask the plan that is on the host.

        Given the same generator, ranks draw what one process draws for all their rows.

        Args:
            num: R.
            generator: source of the draws.
            shared_across_steps: draw once per (b, t) for all steps, as CPC_audio does; where that is z_{t+k} itself it
                is drawn again for that step, so that each step's draws stay uniform over its negatives.
            device: where the draws go; None: they stay.
        """
        device = self.pool.device if device is None else device
        eligible = self.eligible or NegativePool.of(self.pool, self.sequence, self.positives)
        drawn = eligible.draw(num, generator, device, self.num_rows_before)
        if not shared_across_steps:
            return drawn
        assert self.query is not None
        num_steps, _, num_latents = self.size
        time, place = torch.unique_consecutive(self.query // num_steps, return_inverse=True)
        of_times = NegativePool.of(self.pool, time // num_latents, None)
        shared = of_times.draw(num, generator, device, self.num_times_before)[place.to(drawn.device)]
        positives = rearrange(self.positives, "m -> m 1").to(drawn.device, non_blocking=True)
        return torch.where(shared == positives, drawn, shared)


def candidate_set_of(
    strategy: str,
    sequences: Sequences,
    num_latents: int,
    num_steps: int,
    skip_steps: int = 0,
    part: RankSlice | None = None,
    has_draws: bool = False,
) -> CandidateSet:
    """Plan a batch: a row for every step and every t where z_t and z_{t+k} are valid.

    Candidates are all valid latents of the allowed sequences, the same set for every k, plus the positive.

    Args:
        strategy: whose latents a sequence is compared with, a name in `cpc.candidates.STRATEGIES`.
        sequences: of all ranks.
        num_latents: T.
        num_steps: K.
        skip_steps: the first step is k = skip_steps + 1.
        part: those of them that are predicted; None: all.
        has_draws: negatives will be drawn.

    Raises:
        ValueError: as `check_rows`, for the sequences of all ranks: on all of them at once.
    """
    read = Sequences(sequences.num_valid, *identities_read(strategy, *sequences[1:]))
    return _plan(strategy, read.by_first(), num_latents, num_steps, skip_steps, part, has_draws)


@functools.lru_cache(maxsize=8)
@torch.inference_mode(False)
def _plan(
    strategy: str,
    by_first: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...] | None],
    num_latents: int,
    num_steps: int,
    skip_steps: int,
    part: RankSlice | None,
    has_draws: bool,
) -> CandidateSet:
    """As `candidate_set_of`: most batches are like the one before, and share its plan."""
    sequences = Sequences(*(None if each is None else torch.tensor(each) for each in by_first))  # type: ignore[arg-type]
    check_rows(strategy, *sequences, skip_steps=skip_steps)
    own = sequences if part is None else part.of(sequences)
    lenders, first = (own, 0) if part is None or part.is_apart else (sequences, part.first)
    query, step, sequence, target = rows_of(own.num_valid, num_latents, num_steps, skip_steps)
    positives = first * num_latents + target
    allowed = allowed_matrix(strategy, *own[1:], *lenders[1:])
    is_valid = torch.arange(num_latents) < rearrange(lenders.num_valid, "s -> s 1")
    of_candidate = repeat(torch.arange(len(is_valid)), "s -> (s t)", t=num_latents)
    pool = rearrange(rearrange(allowed, "b s -> b s 1") & is_valid, "b s t -> b (s t)")
    of_blocks = blocks(pool, allowed, sequence, of_candidate, positives)
    size = (num_steps, len(own.num_valid), num_latents)
    candidate_set = plan_of_blocks(query, step, sequence, positives, pool, of_blocks, size)
    if has_draws:
        candidate_set = candidate_set._replace(eligible=NegativePool.of(pool, sequence, positives))
    return candidate_set if part is None else _among_all_ranks(candidate_set, part, sequences.num_valid, skip_steps)


def _among_all_ranks(
    candidate_set: CandidateSet, part: RankSlice, num_valid: Int[Tensor, " S"], skip_steps: int
) -> CandidateSet:
    """The plan of a part, with weights and draws that count the rows of all sequences."""
    ahead = skip_steps + torch.arange(1, candidate_set.size[0] + 1)
    num_rows = (rearrange(num_valid, "s -> s 1") - ahead).clamp(min=0)  # [S, K]
    before = num_rows[: part.first]
    return candidate_set._replace(
        weight=part.num_ranks * weight_of(candidate_set.step, num_rows.sum(0)),
        num_rows_before=int(before.sum()),
        num_times_before=int(before[:, 0].sum()),
    )


def plan_of_blocks(
    query: Int[Tensor, " M"] | None,
    step: Int[Tensor, " M"],
    sequence: Int[Tensor, " M"],
    positives: Int[Tensor, " M"],
    pool: Bool[Tensor, "B N"],
    of_blocks: Blocks,
    size: tuple[int, int, int],
) -> CandidateSet:
    """What follows from rows and pools; see `CandidateSet`."""
    weight = weight_of(step)
    of_all, row = one_pool(pool, sequence)
    num_negatives = of_all.sum(1)[row] - of_all[row, positives].long()
    is_used = of_all[row.unique()].any(0)
    is_used[positives] = True
    return CandidateSet(query, step, sequence, positives, weight, pool, num_negatives, is_used, of_blocks, size)


def weight_of(step: Int[Tensor, " M"], num_rows: Int[Tensor, " K"] | None = None) -> Float[Tensor, " M"]:
    """Of each row in the unweighted mean, over those steps that have rows, of the mean over their rows.

    Args:
        step: of each row.
        num_rows: of each step; None: those given are all.
    """
    num_rows = torch.bincount(step) if num_rows is None else num_rows
    return 1 / (num_rows[step] * (num_rows > 0).sum()).double()


def rows_of(num_valid: Int[Tensor, " B"], num_latents: int, num_steps: int, skip_steps: int = 0) -> tuple[Tensor, ...]:
    """Of each row: its place (b t k), that of its step among the K, b, and z_{t+k}'s place (b t).

    One row per sequence, time and step, in the order in which a bilinear predictor lays its queries out.
    """
    ahead = skip_steps + torch.arange(1, num_steps + 1)
    time = rearrange(torch.arange(num_latents), "t -> 1 t 1")
    query = (time + ahead < rearrange(num_valid, "b -> b 1 1")).flatten().nonzero()[:, 0]
    position, step = query // num_steps, query % num_steps
    return query, step, position // num_latents, position + ahead[step]


def check_rows(
    strategy: str,
    num_valid: Int[Tensor, " B"],
    sequence_id: Int[Tensor, " B"],
    group_id: Int[Tensor, " B"] | None = None,
    skip_steps: int = 0,
) -> None:
    """Refuse a batch that cannot be contrasted, from its identities alone.

    Raises:
        ValueError: if no sequence is longer than the first step, or the strategy leaves a row without negatives.
    """
    longest = int(num_valid.max())
    if longest < 2 + skip_steps:
        raise ValueError(
            f"the longest sequence has {longest} latents, a prediction {1 + skip_steps} ahead needs at least "
            f"{2 + skip_steps}: use longer windows (data.window_samples) or larger images (data.image_size), or leave "
            "such short files out"
        )
    num_negatives = num_candidates_of(strategy, num_valid, sequence_id, group_id) - int(includes_own_sequence(strategy))
    alone = (num_negatives < 1) & (num_valid > 1 + skip_steps)
    if bool(alone.any()):
        raise ValueError(
            f"negatives={strategy!r} leaves {int(alone.sum())} of {len(alone)} sequences of a batch without a single "
            "negative: raise data.batch_size, or, for a same-speaker strategy, choose data.sampler=same_speaker, "
            "which puts several sequences of a speaker in each batch"
        )


def check_identities(num: int, num_valid: Any, sequence_id: Any, group_id: Any) -> None:
    """Refuse lengths and identities that are not one integer for each of `num` observations; no value is read.

    Raises:
        ValueError: naming the one.
    """
    for name, each in (("num_valid", num_valid), ("sequence_id", sequence_id), ("group_id", group_id)):
        if each is not None:
            check_tensor(name, each, "integers", (num,))


def _place_of_first(ids: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
    _, places = torch.unique(ids, return_inverse=True)
    return torch.full_like(places, len(ids)).scatter_reduce(0, places, torch.arange(len(ids)), "amin")[places]


def on_host(*ids: Tensor | None) -> Iterator[Tensor | None]:
    """The tensors, of one shape each, on the CPU by one transfer: a GPU is waited for once."""
    given = [each for each in ids if each is not None]
    moved = iter(torch.stack(given).cpu() if any(each.device.type != "cpu" for each in given) else given)
    return (None if each is None else next(moved) for each in ids)
