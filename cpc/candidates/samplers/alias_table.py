"""The alias method (Walker 1977): sample from a discrete distribution in constant time per sample."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def build_alias_table(probabilities: Float[Tensor, " n"]) -> tuple[Float[Tensor, " n"], Int[Tensor, " n"]]:
    """Return thresholds and aliases: numbers in bucket i of n mean class i below the threshold, its alias above.

    Heavy classes (n q_i >= 1) fill the free parts of the buckets of light classes, in order. If less than a full bucket
    remains of a heavy class, the next heavy class fills the bucket of the former. The k-th heavy class therefore fills
    buckets while the total free part of the light classes is below E_k, the total excess of the first k heavy classes.
    Two searches in cumulative sums find every bucket (the sweep of Hübschle-Schneider and Sanders 2022, section 4, for
    all classes at once).
    """
    num_classes = len(probabilities)
    weights = probabilities.double() / probabilities.double().sum() * num_classes
    is_heavy = weights >= weights.max().clamp(max=1)  # rounding of equal classes may leave no heavy class
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


def sample_alias_table(
    uniform: Float[Tensor, "..."], thresholds: Float[Tensor, " n"], aliases: Int[Tensor, " n"]
) -> Int[Tensor, "..."]:
    """Return one class per number in [0, 1). Its leading digits choose the bucket, the rest chooses class or alias."""
    scaled = uniform * len(aliases)
    bucket = scaled.long().clamp(max=len(aliases) - 1)
    return torch.where(scaled - bucket < thresholds[bucket], bucket, aliases[bucket])
