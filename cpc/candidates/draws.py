"""Uniform draws of negatives from each row's own set, and how much repeats add to the bound.

B sequences, M rows (queries), N candidates, R draws per row.
"""

import math

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor


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

    Draws repeat where R is not small against the pool: `draw_excess_nats` says what `log N - L` may then read too much.

    Args:
        pool: candidates that the queries of each sequence may meet.
        query_sequence: the row of `pool` that each query draws from.
        positives: index of each row's positive among the N candidates, never drawn, whether it is in the pool or not;
            None excludes nothing.
        num_negatives: R.
        generator: source of the key of all draws, on the CPU, so that the model's own generator is not used.
        device: where the draws go, without waiting for it if all else is on the CPU; None: that of `pool`.
        num_before: rows of other processes before these. Given the same key, every row draws what it would draw in a
            single process.

    Raises:
        ValueError: if a row has no candidate to draw.
    """
    members = torch.argsort(~pool, dim=1, stable=True)  # [B, N]: the pool's candidates first, in order
    num_eligible = pool.sum(1)[query_sequence]  # [M]
    if positives is not None:
        positive_in_pool = pool[query_sequence, positives]
        num_eligible = num_eligible - positive_in_pool.long()
        place = (pool.cumsum(1) - 1)[query_sequence, positives]  # [M]: where in `members` the positive is
        behind = torch.where(positive_in_pool, place, pool.shape[1])
    if bool((num_eligible < 1).any()):
        raise ValueError(f"{int((num_eligible < 1).sum())} of {len(query_sequence)} rows have no negative to draw")

    # PCG64 reaches any place of its stream at once (torch's generator would have to draw the rows of other processes).
    key = int(torch.randint(2**63 - 1, (), generator=generator))
    of_key = np.random.Generator(np.random.PCG64(key).advance(num_before * num_negatives))
    uniform = torch.from_numpy(of_key.random((len(query_sequence), num_negatives)))
    device = pool.device if device is None else device

    def there(of_rows: Tensor) -> Tensor:
        return rearrange(of_rows, "m -> m 1").to(device, non_blocking=True)

    draws = (uniform.to(device, non_blocking=True) * there(num_eligible)).long()
    if positives is not None:
        draws += draws >= there(behind)
    return members.to(device, non_blocking=True)[there(query_sequence), draws]


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
