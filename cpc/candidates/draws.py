"""Uniform draws of negatives from each row's own set, and how much repeats add to the bound.

B sequences, M rows (queries), N candidates, R draws per row.
"""

import math
from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cpc.data.tensors import check_range, check_tensor
from cpc.native.compiled import call, compiled, source

SOURCE = source("draws.c")
# Of SplitMix64, in torch's signed integers.
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_ROUNDS = ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64))


def draw_negatives(
    pool: Bool[Tensor, "B N"],
    query_sequence: Int[Tensor, " M"],
    positives: Int[Tensor, " M"] | None,
    num_negatives: int,
    generator: torch.Generator | None = None,
    device: torch.device | None = None,
    num_before: int = 0,
) -> Int[Tensor, "M R"]:
    """Draw `num_negatives` candidates per row, uniformly and with replacement, never the row's positive.

    The r-th negative of sequence b is the r-th True of `pool[b]`, where the positive's own place is skipped by adding
    one to every draw at or behind it: the exclusion is exact, no draw is rejected.

    A draw is a function of the generator's key, the row's number among those of all processes, and r: any process, and
    any device, draws its own rows' alone.

    Draws repeat where R is not small against the pool: `draw_excess_nats` says what `log N - L` may then read too much.

    Args:
        pool: candidates that the queries of each sequence may meet.
        query_sequence: the row of `pool` that each query draws from.
        positives: index of each row's positive among the N candidates, never drawn, whether it is in the pool or not;
            None excludes nothing.
        num_negatives: R.
        generator: source of the key of all draws, on the CPU, so that the model's own generator is not used.
        device: where the draws go, without waiting for it if all else is on the CPU; None: that of `pool`.
        num_before: rows of other processes before these.

    Raises:
        ValueError: on tensors of another kind, shape or range, or if a row has no candidate to draw.
    """
    check_tensor("pool", pool, "booleans", ("B", "N"))
    check_tensor("query_sequence", query_sequence, "integers", ("M",))
    check_range("query_sequence", query_sequence, 0, pool.shape[0], "rows of pool")
    if positives is not None:
        check_tensor("positives", positives, "integers", (len(query_sequence),))
        check_range("positives", positives, 0, pool.shape[1], "candidates")
    if num_negatives < 1:
        raise ValueError(f"num_negatives={num_negatives} must be at least 1")
    eligible = NegativePool.of(pool, query_sequence, positives)
    return eligible.draw(num_negatives, generator, pool.device if device is None else device, num_before)


class NegativePool(NamedTuple):
    """What each row may draw: all that does not change from step to step.

    Attributes:
        first: `[M]` where a row's pool begins among the members.
        num: `[M]` how many it may draw.
        behind: `[M]` the draw from which on one is added, as the row's positive is left out.
        members: `[P]` candidates of all pools, one pool after the other.
    """

    first: Tensor
    num: Tensor
    behind: Tensor
    members: Tensor

    @classmethod
    def of(
        cls, pool: Bool[Tensor, "B N"], query_sequence: Int[Tensor, " M"], positives: Int[Tensor, " M"] | None
    ) -> "NegativePool":
        """See `draw_negatives`."""
        pool, query_sequence = one_pool(pool, query_sequence)
        places, num_members = pool.flatten().nonzero()[:, 0], pool.sum(1)
        first = (num_members.cumsum(0) - num_members)[query_sequence]
        num = num_members[query_sequence]
        behind = torch.full_like(num, pool.shape[1])
        if positives is not None:
            is_member = pool[query_sequence, positives]
            num = num - is_member.long()
            among = torch.searchsorted(places, query_sequence * pool.shape[1] + positives) - first
            behind = torch.where(is_member, among, behind)
        if bool((num < 1).any()):
            raise ValueError(f"{int((num < 1).sum())} of {len(query_sequence)} rows have no negative to draw")
        return cls(first, num, behind, places % pool.shape[1])

    @torch.compiler.disable
    def draw(
        self, num_negatives: int, generator: torch.Generator | None, device: torch.device, num_before: int
    ) -> Int[Tensor, "M R"]:
        """See `draw_negatives`."""
        key = int(torch.randint(2**63 - 1, (), generator=generator))
        rows = NegativePool(*(each.to(device, non_blocking=True) for each in self))
        if device.type == "cpu" and compiled(SOURCE) is not None:
            drawn = torch.empty(len(rows.first), num_negatives, dtype=torch.int64)
            call(SOURCE, "draw", (*drawn.shape, num_before, key), (*(each.contiguous() for each in rows), drawn))
            return drawn
        return _draw(key, num_before, num_negatives, *rows)


def _draw(
    key: int,
    num_before: int,
    num_negatives: int,
    first: Int[Tensor, " M"],
    num_eligible: Int[Tensor, " M"],
    behind: Int[Tensor, " M"],
    members: Int[Tensor, " P"],
) -> Int[Tensor, "M R"]:
    """As draws.c. Numbers of a key are those of SplitMix64 (Steele et al. 2014), whose state is a mere counter."""
    rows = torch.arange(num_before, num_before + len(first), device=first.device)
    numbers = rearrange(rows, "m -> m 1") * num_negatives + torch.arange(num_negatives, device=first.device)
    bits = numbers * _GOLDEN + key
    for shift, factor in _ROUNDS:
        bits = (bits ^ _shifted(bits, shift)) * factor
    bits = bits ^ _shifted(bits, 31)
    draws = (_shifted(bits, 11).double() * 2.0**-53 * rearrange(num_eligible, "m -> m 1")).long()
    draws += draws >= rearrange(behind, "m -> m 1")
    return members[rearrange(first, "m -> m 1") + draws]


def _shifted(bits: Int[Tensor, "M R"], num: int) -> Int[Tensor, "M R"]:
    """To the right, with zeros: torch repeats the sign."""
    return (bits >> num) & ((1 << (64 - num)) - 1)


def one_pool(pool: Bool[Tensor, "B N"], sequence: Int[Tensor, " M"]) -> tuple[Bool[Tensor, "_ N"], Int[Tensor, " M"]]:
    """A single row where all sequences have the same pool, as with `mixed`, and which row each query has then."""
    return (pool[:1], torch.zeros_like(sequence)) if bool((pool == pool[:1]).all()) else (pool, sequence)


def draw_excess_nats(num_negatives: int, num_eligible: Int[Tensor, " M"]) -> Float[Tensor, " M"]:
    """How far `log N - L` may lie above the information because draws with replacement repeat: log(N E[1 / (1 + D)]).

    D is the number of distinct negatives among R draws from a pool of P, and E[1 / (1 + D)] the sum of (i / P)^R over
    i = 1 .. P, divided by P + 1. For R small against P the excess is about R / (2 P); docs/theory.md derives it.

    Args:
        num_negatives: R.
        num_eligible: P of each row, at least 1.
    """
    if len(num_eligible) == 0:
        return num_eligible.double()
    powers = num_negatives * torch.arange(1, int(num_eligible.max()) + 1, dtype=torch.float64).log()
    log_sum = powers.logcumsumexp(0).to(num_eligible.device)[num_eligible - 1]
    pool = num_eligible.double()
    return math.log1p(num_negatives) + log_sum - num_negatives * pool.log() - pool.log1p()
