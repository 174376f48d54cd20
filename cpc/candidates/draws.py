"""Uniform sampling of negatives from the pool of each row, and the effect of repeated negatives on `log N - L`.

B sequences, M rows (queries), N candidates, R negatives per row.
"""

import math
from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cpc.config.argument_rules import Range
from cpc.data.tensors import check_indices, check_tensor
from cpc.native.compiled import CFunction, compiled, source
from cpc.native.splitmix64 import INCREMENT, LAST_SHIFT, ROUNDS

SOURCE = source("draws.c")
DRAW = CFunction(
    SOURCE,
    "draw",
    lambda num_rows, num_draws, num_members: {
        "first": (torch.int64, (num_rows,)),
        "num_eligible": (torch.int64, (num_rows,)),
        "behind": (torch.int64, (num_rows,)),
        "members": (torch.int64, (num_members,)),
        "drawn": (torch.int64, (num_rows, num_draws)),
    },
    integers=("num_rows_before", "key"),
)
# torch has no unsigned arithmetic. Subtracting 2^64 from a constant gives the signed integer with the same bits.
_SIGN = 2**64


def draw_negatives(
    pool: Bool[Tensor, "B N"],
    query_sequence: Int[Tensor, " M"],
    positives: Int[Tensor, " M"] | None,
    num_negatives: int,
    generator: torch.Generator | None = None,
    device: torch.device | None = None,
    num_before: int = 0,
) -> Int[Tensor, "M R"]:
    """Draw `num_negatives` candidates per row, uniformly and with replacement, never the positive of the row.

    A random position is an index among the True entries of `pool[b]`. Positions at or behind the positive are increased
    by one. This excludes the positive without rejecting a position.

    Each negative is a function of the key from the generator, the index of the row among the rows of all processes, and
    the index r of the negative. Every process and device can therefore draw the negatives of only its own rows.

    If R is not small compared with the pool, negatives repeat, and `log N - L` may exceed the information.
    `draw_excess_nats` returns the largest excess.

    Args:
        pool: candidates that the queries of each sequence may be compared with.
        query_sequence: the row of `pool` that holds the candidates of each query.
        positives: index of the positive of each row among the N candidates. The positive is never drawn, even if the
            pool holds it. None: rows have no positive.
        num_negatives: R.
        generator: source of the key, on the CPU, or on the device of the draws, so that a CUDA graph draws anew; None:
            the global generator of torch.
        device: device of the result; None: the device of `pool`. If all inputs are on the CPU, the host does not wait
            for the device.
        num_before: number of rows before these rows, in other processes.

    Raises:
        ValueError: if a tensor has a wrong dtype, shape or range, or a row has no candidate to draw.
    """
    check_tensor("pool", pool, "booleans", ("B", "N"))
    check_indices("query_sequence", query_sequence, ("M",), len(pool), "rows of pool")
    if positives is not None:
        check_indices("positives", positives, (len(query_sequence),), pool.shape[1], "candidates")
    Range(1).check("num_negatives", num_negatives)
    negatives = NegativePool.of(pool, query_sequence, positives)
    return negatives.draw(num_negatives, generator, pool.device if device is None else device, num_before)


class NegativePool(NamedTuple):
    """The possible negatives of each row. They stay the same in all training steps with the same candidate set."""

    first: Tensor  # `[M]`, index in `members` of the first candidate of the pool of each row
    num: Tensor  # `[M]`, number of possible negatives of each row
    # `[M]`, position of the positive in the row's pool, or N if the pool does not hold it. Drawn positions from here on
    # are increased by one.
    behind: Tensor
    members: Tensor  # `[P]`, candidates of all pools, one pool after the other

    @classmethod
    def of(
        cls, pool: Bool[Tensor, "B N"], query_sequence: Int[Tensor, " M"], positives: Int[Tensor, " M"] | None
    ) -> "NegativePool":
        """Build the pool from the arguments of `draw_negatives`."""
        pool, query_sequence = one_pool(pool, query_sequence)
        indices, num_members = pool.flatten().nonzero()[:, 0], pool.sum(1)
        first = (num_members.cumsum(0) - num_members)[query_sequence]
        num = num_members[query_sequence]
        behind = torch.full_like(num, pool.shape[1])
        if positives is not None:
            is_member = pool[query_sequence, positives]
            num = num - is_member.long()
            position = torch.searchsorted(indices, query_sequence * pool.shape[1] + positives) - first
            behind = torch.where(is_member, position, behind)
        if bool((num < 1).any()):
            raise ValueError(f"{int((num < 1).sum())} of {len(query_sequence)} rows have no negative to draw")
        return cls(first, num, behind, indices % pool.shape[1])

    @torch.compiler.disable
    def draw(
        self, num_negatives: int, generator: torch.Generator | None, device: torch.device, num_before: int = 0
    ) -> Int[Tensor, "M R"]:
        """Draw negatives from these pools; see `draw_negatives`."""
        source = None if generator is None else generator.device
        key = torch.randint(2**63 - 1, (), generator=generator, device=source)
        rows = NegativePool(*(each.to(device, non_blocking=True) for each in self))
        if device.type == "cpu" and compiled(SOURCE) is not None:
            drawn = torch.empty(len(rows.first), num_negatives, dtype=torch.int64)
            tensors = (*(each.contiguous() for each in rows), drawn)
            if not DRAW((*drawn.shape, len(rows.members)), (num_before, int(key)), tensors):
                raise ValueError("the pool of a row is not inside of `members`")
            return drawn
        return _draw(key, num_before, num_negatives, *rows)


class RowDraws(NamedTuple):
    """The source of drawn negatives. It is the same in all training steps with the same candidate set."""

    num: int  # R
    pool: NegativePool  # the possible negatives of each row
    # Number of rows of the ranks before this one. A row is counted from there, so that no two ranks draw alike.
    num_before: int
    excess_nats: Tensor  # `[M]`, nats that repeated draws may add to log N - L
    # The candidates of each place that has rows, if the steps share draws; None: they do not.
    shared_pool: NegativePool | None = None
    shared_index: Tensor | None = None  # `[M]`, index in `shared_pool` of the place of each row
    num_shared_before: int = 0  # number of places with rows of the ranks before this one
    positive_index: Tensor | None = None  # `[M]`

    @classmethod
    def of(
        cls,
        num: int,
        is_shared: bool,
        candidate_mask: Bool[Tensor, "B N"],
        sequence: Int[Tensor, " M"],
        positive_index: Int[Tensor, " M"],
        query_index: Int[Tensor, " M"],
        before: Bool[Tensor, "S P K"],
    ) -> "RowDraws":
        """Return the source of the draws of the rows of a candidate set."""
        pool = NegativePool.of(candidate_mask, sequence, positive_index)
        draws = cls(num, pool, int(before.sum()), draw_excess_nats(num, pool.num))
        if not is_shared:
            return draws
        num_places, num_distances = before.shape[1:]
        place, index = torch.unique_consecutive(query_index // num_distances, return_inverse=True)
        shared_pool = NegativePool.of(candidate_mask, place // num_places, None)
        return cls(*draws[:4], shared_pool, index, int(before.any(2).sum()), positive_index)

    def draw(self, generator: torch.Generator | None = None) -> Int[Tensor, "M R"]:
        """Draw the negatives of each row, uniformly with replacement, on the device of the plan.

        With the same generator, the negatives of a row are the same whether one process or several ranks draw them. If
        steps share a draw, and it is z_{t+k}, it is drawn again for step k, so that the draws of each step stay uniform
        over its negatives.
        """
        device = self.excess_nats.device
        negatives = self.pool.draw(self.num, generator, device, self.num_before)
        if self.shared_pool is None:
            return negatives
        assert self.positive_index is not None
        shared = self.shared_pool.draw(self.num, generator, device, self.num_shared_before)[self.shared_index]
        return torch.where(shared == rearrange(self.positive_index, "m -> m 1"), negatives, shared)


def _draw(
    key: int | Int[Tensor, ""],
    num_before: int,
    num_negatives: int,
    first: Int[Tensor, " M"],
    num_eligible: Int[Tensor, " M"],
    behind: Int[Tensor, " M"],
    members: Int[Tensor, " P"],
) -> Int[Tensor, "M R"]:
    """Draw with torch operators, with the same result as draws.c.

    Random number i is the i-th number of SplitMix64 (`cpc.native.splitmix64`) with this key.
    """
    rows = torch.arange(num_before, num_before + len(first), device=first.device)
    numbers = rearrange(rows, "m -> m 1") * num_negatives + torch.arange(num_negatives, device=first.device)
    bits = numbers * (INCREMENT - _SIGN) + key
    for shift, factor in ROUNDS:
        bits = (bits ^ _shift_right(bits, shift)) * (factor - _SIGN)
    bits = bits ^ _shift_right(bits, LAST_SHIFT)
    positions = (_shift_right(bits, 11).double() * 2.0**-53 * rearrange(num_eligible, "m -> m 1")).long()
    positions += positions >= rearrange(behind, "m -> m 1")
    return members[rearrange(first, "m -> m 1") + positions]


def _shift_right(bits: Int[Tensor, "M R"], num: int) -> Int[Tensor, "M R"]:
    """Shift the bits right and fill with zeros; the operator of torch fills with the sign bit."""
    return (bits >> num) & ((1 << (64 - num)) - 1)


def one_pool(pool: Bool[Tensor, "B N"], sequence: Int[Tensor, " M"]) -> tuple[Bool[Tensor, "_ N"], Int[Tensor, " M"]]:
    """Return the pools, and the index of each query's pool.

    If all sequences have the same pool, as with `mixed`, one row of `pool` is returned.
    """
    return (pool[:1], torch.zeros_like(sequence)) if bool((pool == pool[:1]).all()) else (pool, sequence)


def draw_excess_nats(num_negatives: int, num_eligible: Int[Tensor, " M"]) -> Float[Tensor, " M"]:
    """Return the largest amount by which repeated negatives can lift `log N - L` above the information.

    It is log(N E[1 / (1 + D)]) for R = `num_negatives` and N = R + 1. D is the number of distinct negatives among R
    draws from a pool of P, `num_eligible` of each row. E[1 / (1 + D)] is the sum of (i / P)^R over i = 1 .. P, divided
    by P + 1. If R is small compared with P, the excess is about R / (2 P); docs/theory.md derives it.
    """
    if len(num_eligible) == 0:
        return num_eligible.double()
    powers = num_negatives * torch.arange(1, int(num_eligible.max()) + 1, dtype=torch.float64).log()
    log_sum = powers.logcumsumexp(0).to(num_eligible.device)[num_eligible - 1]
    pool = num_eligible.double()
    return math.log1p(num_negatives) + log_sum - num_negatives * pool.log() - pool.log1p()
