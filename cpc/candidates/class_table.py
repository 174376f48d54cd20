"""A table with one learned vector per class (a vocabulary, a codebook, labels), which supplies the candidates.

M queries, n classes, D dims.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from cpc.config.argument_rules import Count, Positive, checked


class ClassTable(nn.Module):
    """A table of classes with scores F(x, y) = q . c_y / temperature + b_y.

    To tie the table to an embedding of the same classes, share the parameter: `table.weight = embedding.weight`.

    Args:
        num_classes: n.
        dim: D.
        has_bias: whether every class has a bias b_y.
        is_normalised: scale queries and classes to length 1, so that q . c is a cosine. Kernel samplers need this. It
            corresponds to the normalised embeddings of Rawat et al. 2019 (arXiv:1907.10747), whose tau is 1 /
            temperature.
        temperature: divisor of the products.
        has_sparse_gradients: whether gradients are sparse and hold only the scored classes. Useful for many classes: a
            dense gradient costs a pass over the whole table, and a dense optimiser several, even if few classes are
            scored. Optimisers that accept sparse gradients: `torch.optim.SGD` (without momentum or weight decay),
            `SparseAdam`, `Adagrad`.
    """

    @checked
    def __init__(
        self,
        num_classes: Count,
        dim: Count,
        has_bias: bool = False,
        is_normalised: bool = False,
        temperature: Positive = 1.0,
        has_sparse_gradients: bool = False,
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.dim = dim
        self.has_bias = has_bias
        self.is_normalised = is_normalised
        self.temperature = temperature
        self.has_sparse_gradients = has_sparse_gradients
        # Initial scores have variance 1 at any width if the channels of the queries have mean square 1.
        self.weight = nn.Parameter(torch.randn(num_classes, dim) / math.sqrt(dim))
        self.bias = nn.Parameter(torch.zeros(num_classes)) if has_bias else None

    def normalised(self, vectors: Float[Tensor, "*M D"]) -> Float[Tensor, "*M D"]:
        """Return the vectors of queries or classes, scaled to length 1 if `is_normalised`."""
        return F.normalize(vectors, dim=-1) if self.is_normalised else vectors

    def vectors(self, ids: Int[Tensor, "*M"] | None = None) -> Float[Tensor, "... D"]:
        """Return the vectors of these classes; None: of all classes."""
        if ids is None:
            return self.normalised(self.weight)
        if ids.numel() > self.num_classes and not self.has_sparse_gradients:  # scale each class once
            return F.embedding(ids, self.normalised(self.weight))
        return self.normalised(F.embedding(ids, self.weight, sparse=self.has_sparse_gradients))

    def lookup(self, ids: Int[Tensor, "*M"] | None) -> tuple[Tensor, Tensor | None]:
        """Return vectors and biases of these classes, or of all."""
        return self.vectors(ids), self.biases(ids)

    def biases(self, ids: Int[Tensor, "*M"] | None = None) -> Float[Tensor, "..."] | None:
        """Return the biases of these classes; None if the table has no biases."""
        if self.bias is None or ids is None:
            return self.bias
        gathered = torch.gather(self.bias, 0, ids.flatten(), sparse_grad=self.has_sparse_gradients)
        return gathered.reshape(ids.shape)
