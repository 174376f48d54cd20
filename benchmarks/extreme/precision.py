"""Precision@k of ranked classes, and propensity-scored precision@k, in which rare classes weigh more.

P points, n classes, R ranked classes of each point, D dims, M queries.
"""

from typing import NamedTuple

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from scipy import sparse
from torch import Tensor

_TILE_BYTES = 64 * 2**20


class PropensityParameters(NamedTuple):
    """A and B of Jain et al. 2016: how soon the chance that a label is recorded rises with its frequency."""

    a: float
    b: float


# Of the extreme classification repository (Bhatia et al. 2016): two that were estimated, and their mean for the rest.
PROPENSITY_PARAMETERS = {
    "wikipedia": PropensityParameters(0.5, 0.4),
    "amazon": PropensityParameters(0.6, 2.6),
    "other": PropensityParameters(0.55, 1.5),
}


def top_classes(
    queries: Float[Tensor, "M D"], classes: Float[Tensor, "n D"], num: int, bias: Float[Tensor, " n"] | None = None
) -> Int[Tensor, "M R"]:
    """Return the classes with the highest scores q . c + b of every query, best first, without the matrix of scores.

    Raises:
        ValueError: if there are fewer classes than `num`.
    """
    if not 1 <= num <= len(classes):
        raise ValueError(f"num={num} classes to rank, but there are {len(classes)}")
    rows = max(1, _TILE_BYTES // (classes.element_size() * len(classes)))
    tiles = []
    for tile in queries.detach().split(rows):
        scores = tile @ classes.detach().T
        tiles.append((scores if bias is None else scores + bias.detach()).topk(num).indices)
    return torch.cat(tiles) if tiles else torch.zeros(0, num, dtype=torch.int64)


def precision_at(k: int, ranked: Int[np.ndarray, "P R"], labels: sparse.csr_array) -> Float[np.ndarray, " P"]:
    """Return the share of each point's first k classes that are labels; its mean over points is precision@k.

    The divisor is k even if a point has fewer labels, as in all of this literature: a point with one label has at most
    1/k, and a point without labels 0.

    Args:
        k: from 1 to R.
        ranked: best first, without repetition.
        labels: `[P, n]`.

    Raises:
        ValueError: if fewer than k classes are ranked, or not those of as many points.
    """
    return _is_label(k, ranked, labels).mean(1)


def inverse_propensities(
    labels: sparse.csr_array, parameters: PropensityParameters = PROPENSITY_PARAMETERS["other"]
) -> Float[np.ndarray, " n"]:
    """Return 1/p of every class: eq. 2 of Jain et al. 2016 (KDD), "Extreme multi-label loss functions".

    1/p_l = 1 + C (N_l + B)^-A with C = (log N - 1) (B + 1)^A, where N_l of N training points have class l: log N for a
    class that occurs once, near 1 for the most frequent.

    Args:
        labels: labels `[P, n]` of the TRAINING points, not of the test points.
        parameters: A and B.

    Raises:
        ValueError: if there are fewer than three points, for which C is not positive.
    """
    num_points = labels.shape[0]
    if num_points < 3:
        raise ValueError(f"propensities of {num_points} training points: their formula needs at least 3")
    num_of_class = np.bincount(labels.indices, minlength=labels.shape[1])
    c = (np.log(num_points) - 1) * (parameters.b + 1) ** parameters.a
    return 1 + c * (num_of_class + parameters.b) ** -parameters.a


def propensity_scored_precision_at(
    k: int, ranked: Int[np.ndarray, "P R"], labels: sparse.csr_array, inverse_propensities: Float[np.ndarray, " n"]
) -> float:
    """Return precision@k with weight 1/p for every hit, as a share of the highest possible value: between 0 and 1.

    The repository's normalisation: the sum over all points is divided by the sum of the ranking that puts each point's
    labels with the highest 1/p first. It is a ratio of sums, not a mean of ratios over points.

    Raises:
        ValueError: as `precision_at`, or if no point has a label.
    """
    hits = _is_label(k, ranked, labels)
    scored = np.where(hits, inverse_propensities[ranked[:, :k]], 0).sum()
    best = _sum_of_best(k, labels, inverse_propensities[labels.indices])
    if best == 0:
        raise ValueError("propensity-scored precision of points without labels: there is nothing to find")
    return float(scored / best)


def _sum_of_best(k: int, labels: sparse.csr_array, weights: Float[np.ndarray, " _"]) -> float:
    """Return the sum of the k highest weights of every row."""
    rows = np.repeat(np.arange(labels.shape[0]), np.diff(labels.indptr))
    order = np.lexsort((-weights, rows))
    rank_in_row = np.arange(len(weights)) - labels.indptr[rows]
    return float(weights[order][rank_in_row < k].sum())


def _is_label(k: int, ranked: Int[np.ndarray, "P R"], labels: sparse.csr_array) -> Bool[np.ndarray, "P k"]:
    if not 1 <= k <= ranked.shape[1]:
        raise ValueError(f"precision@{k} needs {k} ranked classes of every point, but there are {ranked.shape[1]}")
    if len(ranked) != labels.shape[0]:
        raise ValueError(f"classes are ranked for {len(ranked)} points, but there are labels of {labels.shape[0]}")
    rows = np.repeat(np.arange(len(ranked)), k)
    found = labels[rows, ranked[:, :k].ravel()]
    return rearrange(np.asarray(found, bool), "(p k) -> p k", k=k)
