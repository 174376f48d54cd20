"""Rows of a sparse matrix as tensors.

M rows, E entries of all of them.
"""

from typing import NamedTuple

import torch
from scipy import sparse
from torch import Tensor


class SparseBatch(NamedTuple):
    """Sparse observations, one after the other.

    Attributes:
        features: `[E]` int64, which feature each entry is of.
        values: `[E]` float32.
        offsets: `[M]` int64, where each row begins.
    """

    features: Tensor
    values: Tensor
    offsets: Tensor

    def to(self, device: torch.device | str) -> "SparseBatch":
        """The same on another device."""
        return SparseBatch(*(part.to(device) for part in self))


def sparse_batch(rows: sparse.csr_array) -> SparseBatch:
    """The rows as tensors, for `SparseEncoder`."""
    return SparseBatch(
        features=torch.from_numpy(rows.indices).long(),
        values=torch.from_numpy(rows.data).float(),
        offsets=torch.from_numpy(rows.indptr[:-1]).long(),
    )
