"""An encoder of sparse observations, such as bags of words: one linear map.

M observations, E entries of all of them, F features, D latent dim.
"""

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from benchmarks.extreme.sparse_batch import SparseBatch


class SparseEncoder(nn.Module):
    """The map z = W x for sparse x: the sum of the rows of W for the features of x, each times the feature's value.

    The input embedding of Rawat et al. 2019 (arXiv:1907.10747, section 4) for extreme classification. Time and memory
    of a step grow with the entries of the batch, not with the number of features, if `sparse_gradients` is on.

    Args:
        num_features: F.
        dim: D.
        normalise: scale every x to unit length first, so that long documents do not have long latents; the latents of
            an untrained encoder then have about unit length. An observation without features has the latent 0.
        sparse_gradients: gradients are sparse in the rows of W. Adagrad, SparseAdam and SGD support them; Adam does
            not.
    """

    def __init__(
        self, num_features: int, dim: int = 128, normalise: bool = True, sparse_gradients: bool = False
    ) -> None:
        super().__init__()
        if min(num_features, dim) < 1:
            raise ValueError(f"num_features={num_features} and dim={dim} must be at least 1")
        self.num_features = num_features
        self.dim = dim
        self.normalise = normalise
        self.sparse_gradients = sparse_gradients
        self.weight = nn.Parameter(torch.randn(num_features, dim) / dim**0.5)

    def forward(self, x: SparseBatch) -> Float[Tensor, "M D"]:
        """Encode every observation.

        Raises:
            ValueError: if there is a feature that the encoder does not have.
        """
        if len(x.features) and int(x.features.max()) >= self.num_features:
            raise ValueError(
                f"feature {int(x.features.max())} of an observation, but num_features={self.num_features} of the "
                f"encoder ends with {self.num_features - 1}"
            )
        sums = F.embedding_bag(
            x.features,
            self.weight,
            x.offsets,
            per_sample_weights=x.values.to(self.weight.dtype),
            mode="sum",
            sparse=self.sparse_gradients,
        )
        return sums / rearrange(_lengths(x).to(sums.dtype), "m -> m 1") if self.normalise else sums


def _lengths(x: SparseBatch) -> Float[Tensor, " M"]:
    """Return the Euclidean lengths of the observations; 1 for an empty observation."""
    entry_rows = torch.bucketize(torch.arange(len(x.values), device=x.values.device), x.offsets, right=True) - 1
    squares = torch.zeros(len(x.offsets), device=x.values.device).index_add(0, entry_rows, x.values.square())
    return torch.where(squares > 0, squares, 1).sqrt()
