"""The three matrix products of a tile of scores, in float32 or with operands rounded to bfloat16.

M queries of the tile, N candidates, D latent dim.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

_products: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]


class Products:
    """Products with one block of candidates: everything arrives, adds up and leaves in the candidates' dtype."""

    def __init__(self, candidates: Float[Tensor, "N D"]) -> None:
        self.candidates = candidates

    def scores(self, queries: Float[Tensor, "M D"], out: Float[Tensor, "M N"]) -> Float[Tensor, "M N"]:
        """`queries @ candidates.T`, into `out`."""
        return torch.mm(queries, self.candidates.T, out=out)

    def query_gradient(self, weights: Float[Tensor, "M N"]) -> Float[Tensor, "M D"]:
        """`weights @ candidates`."""
        return torch.mm(weights, self.candidates)

    def add_candidate_gradient(
        self, weights: Float[Tensor, "M N"], queries: Float[Tensor, "M D"], total: Float[Tensor, "N D"]
    ) -> None:
        """`total += weights.T @ queries`."""
        total.addmm_(weights.T, queries)


class RoundedProducts(Products):
    """The same with every operand rounded to bfloat16; scores and sums over tiles stay float32."""

    def __init__(self, candidates: Float[Tensor, "N D"]) -> None:
        super().__init__(candidates)
        self.rounded = candidates.bfloat16()
        self.rounded_float32 = self.rounded.float()

    def scores(self, queries: Float[Tensor, "M D"], out: Float[Tensor, "M N"]) -> Float[Tensor, "M N"]:  # noqa: D102
        if queries.is_cuda:
            return out.copy_(torch.mm(queries.bfloat16(), self.rounded.T, out_dtype=torch.float32))
        # A CPU's bfloat16 product rounds its result too. Rounded operands in float32 may go through bfloat16 units
        # without any further loss, and do where the processor has them.
        with _bfloat16_inside_float32():
            return torch.mm(queries.bfloat16().float(), self.rounded_float32.T, out=out)

    def query_gradient(self, weights: Float[Tensor, "M N"]) -> Float[Tensor, "M D"]:  # noqa: D102
        return torch.mm(weights.bfloat16(), self.rounded).float()

    def add_candidate_gradient(  # noqa: D102
        self, weights: Float[Tensor, "M N"], queries: Float[Tensor, "M D"], total: Float[Tensor, "N D"]
    ) -> None:
        total += torch.mm(weights.bfloat16().T, queries.bfloat16())


@contextmanager
def _bfloat16_inside_float32() -> Iterator[None]:
    before = _products.fp32_precision
    _products.fp32_precision = "bf16"
    try:
        yield
    finally:
        _products.fp32_precision = before
