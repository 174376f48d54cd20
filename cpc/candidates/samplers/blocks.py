"""How classes are parted into blocks, for samplers that draw a block first.

n classes, D dims, B blocks, P places in block order, R rows.
"""

import math
from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

BLOCKS = ("kmeans", "ids", "random")

NUM_ITERATIONS = 10
POINTS_PER_CENTROID = 64  # beyond so many, Lloyd's iterations see a random part of the points
MOST_CENTROIDS_AT_ONCE = 512
TILE_ELEMENTS = 2**24


def part_into_blocks(kind: str, embeddings: Float[Tensor, "n D"], num_blocks: int, seed: int) -> Int[Tensor, " n"]:
    """The block of each class.

    Args:
        kind: `kmeans` by nearest centroid, of any size, also empty; `ids`: neighbours in the table, of equal size;
            `random`: of equal size.
        embeddings: of all classes.
        num_blocks: B.
        seed: of what is random.
    """
    num = len(embeddings)
    in_turn = torch.arange(num, device=embeddings.device) * num_blocks // num
    if kind == "ids":
        return in_turn
    generator = torch.Generator().manual_seed(seed)
    if kind == "random":
        return in_turn[torch.randperm(num, generator=generator).to(in_turn.device)]
    return k_means(embeddings, num_blocks, generator)


def k_means(points: Float[Tensor, "n D"], num_clusters: int, generator: torch.Generator) -> Int[Tensor, " n"]:
    """The cluster of each point, by Lloyd's iterations from random points.

    Beyond 512 clusters, their square root is found first, and each of those is parted again, in proportion to its
    size: O(n sqrt(B) D) instead of O(n B D).
    """
    if num_clusters <= MOST_CENTROIDS_AT_ONCE:
        return _lloyd(points, num_clusters, generator)
    num_coarse = round(math.sqrt(num_clusters))
    coarse = _lloyd(points, num_coarse, generator)
    sizes = torch.bincount(coarse, minlength=num_coarse)
    num_fine = 1 + sizes * (num_clusters - num_coarse) // len(points)
    first = num_fine.cumsum(0) - num_fine
    members = coarse.argsort(stable=True).split(sizes.tolist())
    clusters = torch.empty_like(coarse)
    for start, num, inside in zip(first.tolist(), num_fine.tolist(), members, strict=True):
        if len(inside):
            clusters[inside] = start + k_means(points[inside], num, generator)
    return clusters


def _lloyd(points: Float[Tensor, "n D"], num_clusters: int, generator: torch.Generator) -> Int[Tensor, " n"]:
    shuffled = torch.randperm(len(points), generator=generator).to(points.device)
    seen = points[shuffled[: POINTS_PER_CENTROID * num_clusters]]
    centroids = seen[:num_clusters]
    for _ in range(NUM_ITERATIONS):
        nearest = _nearest(seen, centroids)
        num = torch.bincount(nearest, minlength=len(centroids))
        sums = torch.zeros_like(centroids).index_add_(0, nearest, seen)
        # A cluster that has lost its points stays where it was.
        centroids = torch.where(
            rearrange(num > 0, "b -> b 1"), sums / rearrange(num.clamp(min=1), "b -> b 1"), centroids
        )
    return _nearest(points, centroids)


def _nearest(points: Float[Tensor, "n D"], centroids: Float[Tensor, "B D"]) -> Int[Tensor, " n"]:
    half_squares = 0.5 * (centroids**2).sum(1)
    tiles = points.split(max(1, TILE_ELEMENTS // len(centroids)))
    return torch.cat([torch.addmm(half_squares, tile, centroids.T, beta=-1).argmax(1) for tile in tiles])


class Members(NamedTuple):
    """The places of several blocks, one block after the other."""

    place: Tensor  # [P]
    row: Tensor  # [P]: which of the blocks asked for
    end: Tensor  # [R]: where each block ends among them


def members_of(blocks: Int[Tensor, " R"], offsets: Int[Tensor, " B1"]) -> Members:
    """Places of the blocks' members, where block b holds places offsets[b] to offsets[b + 1]."""
    sizes = offsets[blocks + 1] - offsets[blocks]
    end = sizes.cumsum(0)
    row = torch.repeat_interleave(sizes)
    within = torch.arange(len(row), device=row.device) - (end - sizes)[row]
    return Members(offsets[blocks][row] + within, row, end)
