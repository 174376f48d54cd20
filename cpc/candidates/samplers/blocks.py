"""Partitions of the classes into blocks, for samplers that sample a block first.

n classes, D dims, B blocks, P positions in block order, R rows.
"""

import math
from typing import Literal

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

Blocks = Literal["kmeans", "ids", "random"]

NUM_ITERATIONS = 10
POINTS_PER_CENTROID = 64  # with more points, Lloyd's iterations use a random subset
MOST_CENTROIDS_AT_ONCE = 512
TILE_ELEMENTS = 2**24


def assign_blocks(kind: str, embeddings: Float[Tensor, "n D"], num_blocks: int, seed: int) -> Int[Tensor, " n"]:
    """Return the block of each class.

    `kmeans`: a class belongs to the nearest centroid; blocks have any size and may be empty. `ids`: blocks of equal
    size hold consecutive classes. `random`: blocks of equal size hold random classes.
    """
    num = len(embeddings)
    consecutive = torch.arange(num, device=embeddings.device) * num_blocks // num
    if kind == "ids":
        return consecutive
    generator = torch.Generator().manual_seed(seed)
    if kind == "random":
        return consecutive[torch.randperm(num, generator=generator).to(consecutive.device)]
    return k_means(embeddings, num_blocks, generator)


def k_means(points: Float[Tensor, "n D"], num_clusters: int, generator: torch.Generator) -> Int[Tensor, " n"]:
    """Return the cluster of each point, by Lloyd's iterations from random points.

    For more than 512 clusters, the points are first clustered into sqrt(B) clusters, and each of these is clustered
    again into a number of clusters in proportion to its size. The cost is O(n sqrt(B) D) instead of O(n B D).
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
    for start, num, points_inside in zip(first.tolist(), num_fine.tolist(), members, strict=True):
        if len(points_inside):
            clusters[points_inside] = start + k_means(points[points_inside], num, generator)
    return clusters


def _lloyd(points: Float[Tensor, "n D"], num_clusters: int, generator: torch.Generator) -> Int[Tensor, " n"]:
    shuffled = torch.randperm(len(points), generator=generator).to(points.device)
    sample = points[shuffled[: POINTS_PER_CENTROID * num_clusters]]
    centroids = sample[:num_clusters]
    for _ in range(NUM_ITERATIONS):
        nearest = _nearest(sample, centroids)
        num = torch.bincount(nearest, minlength=len(centroids))
        sums = torch.zeros_like(centroids).index_add_(0, nearest, sample)
        # A cluster without points keeps its centroid.
        centroids = torch.where(
            rearrange(num > 0, "b -> b 1"), sums / rearrange(num.clamp(min=1), "b -> b 1"), centroids
        )
    return _nearest(points, centroids)


def _nearest(points: Float[Tensor, "n D"], centroids: Float[Tensor, "B D"]) -> Int[Tensor, " n"]:
    half_squares = 0.5 * (centroids**2).sum(1)
    tiles = points.split(max(1, TILE_ELEMENTS // len(centroids)))
    return torch.cat([torch.addmm(half_squares, tile, centroids.T, beta=-1).argmax(1) for tile in tiles])


def block_members(
    blocks: Int[Tensor, " R"], offsets: Int[Tensor, " B1"]
) -> tuple[Int[Tensor, " P"], Int[Tensor, " P"], Int[Tensor, " R"]]:
    """Return the members of these blocks, one block after the other; the index in `blocks` of each; and their ends.

    Members are positions in block order. Block b holds the positions from offsets[b] to offsets[b + 1].
    """
    sizes = offsets[blocks + 1] - offsets[blocks]
    end = sizes.cumsum(0)
    row = torch.repeat_interleave(sizes)
    index_in_block = torch.arange(len(row), device=row.device) - (end - sizes)[row]
    return offsets[blocks][row] + index_in_block, row, end
