"""Draws of any discrete law in constant time each (Walker 1977), from tables that are built without a loop."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def build_alias_table(probabilities: Float[Tensor, " n"]) -> tuple[Float[Tensor, " n"], Int[Tensor, " n"]]:
    """Thresholds and aliases: bucket i of n equal ones is class i's below its threshold, its alias's above.

    Heavy classes (n q_i >= 1) fill what light ones leave of their buckets, in order. One that gave too much, down to
    less than its own bucket, is filled up by the next heavy one. So the k-th heavy class serves while the sum D of
    what light classes lack is below the sum E_k of what the first k heavy ones have to spare: two searches in
    cumulative sums find every bucket (the sweep of Hübschle-Schneider and Sanders 2022, section 4, for all at once).
    """
    num_classes = len(probabilities)
    weights = probabilities.double() / probabilities.double().sum() * num_classes
    is_heavy = weights >= weights.max().clamp(max=1)  # rounding may leave none at 1 where all are equal
    heavy, light = is_heavy.nonzero()[:, 0], (~is_heavy).nonzero()[:, 0]
    lacking = (1 - weights[light]).cumsum(0)
    spare = (weights[heavy] - 1).cumsum(0)

    thresholds, aliases = torch.ones_like(weights), torch.arange(num_classes, device=weights.device)
    lacking_before = torch.cat([lacking.new_zeros(1), lacking])[: len(light)]
    server = torch.searchsorted(spare, lacking_before, right=True).clamp(max=len(heavy) - 1)
    thresholds[light], aliases[light] = weights[light], heavy[server]
    if len(light):
        overdrawn = torch.searchsorted(lacking, spare[:-1]).clamp(max=len(light) - 1)
        thresholds[heavy[:-1]] = (1 - (lacking[overdrawn] - spare[:-1])).clamp(0, 1)
        aliases[heavy[:-1]] = heavy[1:]
    return thresholds, aliases


def alias_draws(
    uniform: Float[Tensor, "..."], thresholds: Float[Tensor, " n"], aliases: Int[Tensor, " n"]
) -> Int[Tensor, "..."]:
    """One draw for each number in [0, 1): its leading part picks the bucket, the remainder decides in it."""
    scaled = uniform * len(aliases)
    bucket = scaled.long().clamp(max=len(aliases) - 1)
    return torch.where(scaled - bucket < thresholds[bucket], bucket, aliases[bucket])
