"""The sequences of a loss, without their vectors: places of latents, lengths, identities, labels, and rows.

They decide, with a strategy, which latents are compared. A row is a query and the latent that it predicts. Everything
here is on the host.

J directions of time (1 for sequences), K distances ahead, J K steps, B sequences of L latents (H W for a grid), P
places: a place is a latent with a direction in which its queries look.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Int
from torch import Tensor

from cpc.candidates.strategies import check_num_latents
from cpc.contexts.grid import columns
from cpc.data.tensors import check_tensor


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


class Sequences(NamedTuple):
    """The sequences of a batch."""

    geometry: Geometry  # where the targets of the queries lie
    # `[B]`, number of latents that are signal. Further latents are padding, which is neither target nor candidate.
    num_latents: Tensor
    sequence_id: Tensor | None = None  # `[B]`; sequences that may overlap share an id. None: all are distinct
    group_id: Tensor | None = None  # `[B]`, the speaker, -1 if unknown; None: all are unknown
    is_known: Tensor | None = None  # `[B, L]`, False for a latent that is treated as padding. None: all are known
    labels: Tensor | None = None  # `[B, _]`, classes of the latents; None: there are none
    device: torch.device = torch.device("cpu")  # the device of the vectors

    @classmethod
    def of(
        cls,
        geometry: Geometry,
        num_sequences: int,
        num_latents: Int[Tensor, " B"] | None = None,
        sequence_id: Int[Tensor, " B"] | None = None,
        group_id: Int[Tensor, " B"] | None = None,
        is_known: Bool[Tensor, "B L"] | None = None,
        **others: Any,
    ) -> "Sequences":
        """Return sequences, with all tensors on the host; ValueError if a tensor has a wrong dtype or shape."""
        for name, ids in (("num_latents", num_latents), ("sequence_id", sequence_id), ("group_id", group_id)):
            if ids is not None:
                check_tensor(name, ids, "integers", (num_sequences,))
        num_latents, sequence_id, group_id = _copy_to_host(num_latents, sequence_id, group_id)
        if num_latents is None:
            num_latents = torch.full((num_sequences,), geometry.num_latents)
        sequences = cls(geometry, num_latents, sequence_id, group_id, **others)
        if is_known is None:
            return sequences
        check_tensor("is_known", is_known, "booleans", (num_sequences, geometry.num_latents))
        is_known = is_known.cpu()
        # Equal lengths without missing latents share a candidate set.
        return sequences._replace(is_known=is_known) if bool((sequences._is_signal() & ~is_known).any()) else sequences

    @property
    def ids(self) -> Int[Tensor, " B"]:
        """`sequence_id`, or distinct numbers."""
        return torch.arange(len(self.num_latents)) if self.sequence_id is None else self.sequence_id

    @property
    def is_valid(self) -> Bool[Tensor, "B L"]:
        """Mask of the known latents that are not padding; ValueError if a sequence counts more latents than exist."""
        check_num_latents(self.num_latents, self.geometry.num_latents)
        return self._is_signal() if self.is_known is None else self._is_signal() & self.is_known

    def _is_signal(self) -> Bool[Tensor, "B L"]:
        return torch.arange(self.geometry.num_latents) < rearrange(self.num_latents, "b -> b 1")

    def select(self, part: slice) -> "Sequences":
        """Return some of the sequences."""
        return Sequences(self.geometry, *(None if each is None else each[part] for each in self[1:6]))  # type: ignore[arg-type]

    def cache_key(self) -> tuple[Any, ...]:
        """Return all that a candidate set depends on: lengths, equalities of identities, and the mask of known latents.

        The index of the first sequence with an identity replaces the identity; -1 (unknown) stays.
        """
        group_id = None
        if self.group_id is not None:
            group_id = tuple(_first_index(self.group_id).masked_fill(self.group_id < 0, -1).tolist())
        is_known = None if self.is_known is None else tuple(map(tuple, self.is_known.tolist()))
        return tuple(self.num_latents.tolist()), tuple(_first_index(self.ids).tolist()), group_id, is_known


def _copy_to_host(*ids: Tensor | None) -> Iterator[Tensor | None]:
    """Return tensors of one shape on the CPU, copied by one transfer, so that the host waits for a GPU only once."""
    present = [each for each in ids if each is not None]
    moved = iter(torch.stack(present).cpu() if any(each.device.type != "cpu" for each in present) else present)
    return (None if each is None else next(moved) for each in ids)


def _first_index(ids: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
    """Return, for each sequence, the index of the first sequence with the same identity."""
    _, index = torch.unique(ids, return_inverse=True)
    return torch.full_like(index, len(ids)).scatter_reduce(0, index, torch.arange(len(ids)), "amin")[index]
