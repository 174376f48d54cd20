"""The rows of a loss: every query, and the latent that it predicts.

J directions of time (1 for sequences), K distances ahead, J K steps, B sequences of L latents (H W for a grid), P
places: a place is a latent with a direction in which its queries look.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Int
from torch import Tensor

from cpc.contexts.grid import columns


class Geometry(NamedTuple):
    """The places of a sequence, and the latents that its queries predict.

    `shape` is `(T,)` for a sequence, `(H, W)` for a grid. A sequence has one direction, without a name. `distances` are
    the latents that each of the K queries of a place predicts ahead, in increasing order.
    """

    shape: tuple[int, ...]
    directions: tuple[str, ...]
    distances: tuple[int, ...]

    @property
    def num_latents(self) -> int:
        """The number of latents of a sequence."""
        return math.prod(self.shape)

    @property
    def shortest(self) -> int:
        """Length of the shortest column along a direction."""
        return min(self.shape[direction in ("right", "left")] for direction in self.directions)

    @property
    def num_steps(self) -> int:
        """The number of steps of all directions."""
        return len(self.directions) * len(self.distances)

    def latents_and_targets(self) -> tuple[Int[Tensor, " P"], Int[Tensor, "P K"]]:
        """Return the latent of each place and the targets of its queries; L for a target outside of the sequence."""
        latents, targets = [], []
        grid = torch.arange(self.num_latents).reshape(1, *self.shape, 1)
        for direction in self.directions:
            index = columns(grid, direction)[..., 0]  # [S, T], latents of a column
            ahead = positions_ahead(index.shape[1], self.distances)
            latents.append(index.flatten())
            targets.append(F.pad(index, (0, max(self.distances)), value=self.num_latents)[:, ahead].flatten(0, 1))
        return torch.cat(latents), torch.cat(targets)


def positions_ahead(num_latents: int, distances: Sequence[int]) -> Int[Tensor, "T K"]:
    """Return t + k for every t < `num_latents` and every distance k."""
    return rearrange(torch.arange(num_latents), "t -> t 1") + torch.tensor(distances)


def rows_mask(is_valid: Bool[Tensor, "B L"], geometry: Geometry) -> Bool[Tensor, "B P K"]:
    """Return the queries that have a row: the latent of their place and their target are both valid."""
    latents, targets = geometry.latents_and_targets()
    return rearrange(is_valid[:, latents], "b p -> b p 1") & F.pad(is_valid, (0, 1))[:, targets]


def rows_of(has_row: Bool[Tensor, "B P K"], geometry: Geometry) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the query (b p k), step (j k), sequence and target (b l) of each row of a mask.

    Queries have the order of `cpc.losses.contrastive.flat_queries`.
    """
    num_places, num_distances = has_row.shape[1:]
    _, targets = geometry.latents_and_targets()
    sequence, place, distance = has_row.nonzero(as_tuple=True)
    query = (sequence * num_places + place) * num_distances + distance
    step = place // (num_places // len(geometry.directions)) * num_distances + distance
    return query, step, sequence, sequence * geometry.num_latents + targets[place, distance]
