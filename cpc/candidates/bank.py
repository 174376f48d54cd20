"""A bank of stored latents, which serve as negatives.

n latents of the bank, D latent dim.
"""

from collections.abc import Iterator
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cpc.config.argument_rules import Range
from cpc.data.tensors import check_tensor


class LatentBank:
    """Stored latents and the sequence of each; a bank has no trained parameters.

    All latents of a bank should come from the encoder of the positives. Otherwise a critic can score a candidate by its
    encoder instead of by its content.

    Args:
        latents: z.
        sequence_id: id of the file of each latent, so that a row can skip the latents of its own file; -1 (the default)
            if unknown.

    Example:
        >>> bank = LatentBank(torch.randn(100, 8))
        >>> len(bank), bank.dim, [len(bank.latents[tile]) for tile in bank.tiles(64)]
        (100, 8, [64, 36])
    """

    def __init__(self, latents: Float[Tensor, "n D"], sequence_id: Int[Tensor, " n"] | None = None) -> None:
        check_tensor("latents", latents, "floats", ("n", "D"))
        Range(1).check("the number of latents", len(latents))
        if sequence_id is not None:
            check_tensor("sequence_id", sequence_id, "integers", (len(latents),))
        self.latents = latents.detach()
        self.sequence_id = torch.full((len(latents),), -1) if sequence_id is None else sequence_id

    def __len__(self) -> int:
        """Return the number of latents."""
        return len(self.latents)

    @property
    def dim(self) -> int:
        """The dimension D of the latents."""
        return self.latents.shape[1]

    def tiles(self, size: int) -> Iterator[slice]:
        """Return slices of at most `size` latents that cover the bank."""
        return (slice(start, min(start + size, len(self))) for start in range(0, len(self), size))

    def num_of(self, sequence_id: Int[Tensor, " M"]) -> Int[Tensor, " M"]:
        """Return the number of stored latents of each of these sequences; 0 for the id -1."""
        ids, counts = (values.to(sequence_id.device) for values in self._sequences)
        index = torch.searchsorted(ids, sequence_id.contiguous()).clamp(max=len(ids) - 1)
        return torch.where((ids[index] == sequence_id) & (sequence_id >= 0), counts[index], 0)

    @cached_property
    def _sequences(self) -> tuple[Int[Tensor, " S"], Int[Tensor, " S"]]:
        """The distinct ids in ascending order, and the number of latents of each."""
        ids, counts = self.sequence_id.unique(return_counts=True)
        return ids, counts
