"""Signs of collapsed features: their variance, and the number of dimensions that they fill.

n features, D feature dim.
"""

import math
from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

NUM_FEATURES = 512  # largest number of features; with more, the rank takes as long as a training step of a small model
LEAST_RELATIVE_VARIANCE = 1e-4
LEAST_EFFECTIVE_RANK = 1.5


class Health(NamedTuple):
    """Statistics of a sample of features.

    Attributes:
        variance: mean over the dimensions of the variance over the features.
        relative_variance: variance over all dimensions divided by the mean square of the features; 0 if all features
            are equal.
        effective_rank: number of dimensions that the features fill, from 1 to min(n - 1, D).
        is_collapsed: True if `relative_variance` is below 1e-4, `effective_rank` is below 1.5 in more than two
            dimensions, or a feature is not finite.
    """

    variance: float
    relative_variance: float
    effective_rank: float
    is_collapsed: bool


@torch.no_grad()
def health(features: Float[Tensor, "n D"]) -> Health:
    """Return variance and effective rank of features; of more than 512 features, 512 evenly spaced ones are used.

    The function does not draw random numbers, so it does not change training.

    Raises:
        ValueError: if there are fewer than two features.
    """
    if len(features) < 2:
        raise ValueError(f"{len(features)} features have no variance: at least 2 are needed")
    if len(features) > NUM_FEATURES:
        features = features[torch.linspace(0, len(features) - 1, NUM_FEATURES, device=features.device).long()]
    x = features.double()
    if not torch.isfinite(x).all():
        return Health(math.nan, math.nan, math.nan, is_collapsed=True)
    variances = x.var(0)
    mean_square = x.square().sum(1).mean().item()
    relative = variances.sum().item() / mean_square if mean_square > 0 else 0.0
    rank = effective_rank(x)
    is_flat = x.shape[1] > 2 and rank < LEAST_EFFECTIVE_RANK
    return Health(variances.mean().item(), relative, rank, relative < LEAST_RELATIVE_VARIANCE or is_flat)


def effective_rank(features: Float[Tensor, "n D"]) -> float:
    """Return exp of the entropy of the normalised singular values of the centred features.

    It is 1 for features on a line or at a point, and D for white noise: definition 1 of Roy and Vetterli 2007, "The
    effective rank: a measure of effective dimensionality"; Garrido et al. 2023 (arXiv:2210.02885) use it to find
    collapse without labels. The singular values come from the smaller Gram matrix in float64.
    """
    x = features.double()
    x = x - x.mean(0)
    if x.shape[0] < x.shape[1]:
        x = rearrange(x, "n d -> d n")
    values = torch.linalg.eigvalsh(x.T @ x).clamp(min=0).sqrt()
    total = values.sum()
    if total == 0:
        return 1.0
    shares = values / total
    return math.exp(-torch.special.xlogy(shares, shares).sum().item())
