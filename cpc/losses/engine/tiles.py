"""The scores of a block of rows, a tile at a time, and the way back from slopes to gradients.

M rows of the block, N of its candidates, R drawn negatives, D latent dim; m counts a tile's rows.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from cpc.native.compiled import call, compiled, source

COMPUTE = ("float32", "bf16", "reference")
TILE_ROWS = 1024
TILE_SCORES = 2**24  # 64 MiB of float32
# Drawn negatives are selected from all scores as long as those cost no more than products with the drawn ones alone.
# Candidates per drawn negative, measured by `python -m benchmarks.loss --rule`:
DRAWN_BEYOND = 2  # in C
GATHER_BEYOND = 100  # in torch, which gathers the negatives' vectors
SOURCE = source("drawn.c")
_mkldnn_products: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]


def tiles_of(
    num_rows: int, candidates: Tensor, bias: Tensor | None, drawn: Tensor | None, compute: str
) -> "SharedTiles | OwnTiles":
    """The faster way to score the candidates, or those that were drawn.

    Args:
        num_rows: M.
        candidates: `[N, D]` for all rows, or `[M, N, D]`, each row's own.
        bias: added to the scores, `[N]` or `[M, N]`.
        drawn: `[M, 1 + R]` places of a row's candidates, its positive in front; None: all candidates.
        compute: `bf16` rounds the operands of products with shared candidates.
    """
    if candidates.ndim == 3:
        return OwnTiles(candidates, bias, None)
    if drawn is not None:
        num_each = len(candidates) / (drawn.shape[1] - 1)
        in_c = candidates.device.type == "cpu" and compute == "float32"
        if in_c and num_each > DRAWN_BEYOND and compiled(SOURCE) is not None:
            return DrawnTiles(candidates, bias, drawn)
        if num_each > GATHER_BEYOND:
            return OwnTiles(candidates, bias, drawn)
    return (RoundedTiles if compute == "bf16" else SharedTiles)(num_rows, candidates, bias, drawn)


class SharedTiles:
    """Every candidate is scored in one product; if negatives were drawn, theirs are selected.

    A tile's gradients are asked for before the next tile's scores. Everything arrives, adds up and leaves in the
    candidates' dtype.
    """

    def __init__(self, num_rows: int, candidates: Tensor, bias: Tensor | None, drawn: Tensor | None) -> None:
        self.num_rows, self.candidates, self.bias, self.drawn = num_rows, candidates, bias, drawn
        size = min(num_rows, TILE_ROWS, max(64, TILE_SCORES // len(candidates)))
        self.scratch = candidates.new_empty(size, len(candidates))

    def rows(self) -> Iterator[slice]:
        """The tiles, as places in the block's rows."""
        return slices(self.num_rows, len(self.scratch))

    def scores(self, queries: Tensor, tile: slice) -> Tensor:
        """`[m, N]` or `[m, 1 + R]`, to be overwritten, given the tile's queries `[m, D]`."""
        self.of_tile = self._product(queries, self.scratch[: len(queries)])
        if self.bias is not None:
            self.of_tile += self.bias
        return self.of_tile if self.drawn is None else self.of_tile.gather(1, self.drawn[tile])

    def spread(self, score_gradients: Tensor, tile: slice) -> Tensor:
        """The slopes of all candidates: in the place of the scores where these were selected."""
        return (
            score_gradients
            if self.drawn is None
            else self.of_tile.zero_().scatter_add_(1, self.drawn[tile], score_gradients)
        )

    def query_gradient(self, score_gradients: Tensor) -> Tensor:
        """`[m, D]`: spread slopes times candidates."""
        return torch.mm(score_gradients, self.candidates)

    def add_candidate_gradient(self, score_gradients: Tensor, queries: Tensor, total: Tensor) -> None:
        """Add slopes times queries to `total`, of the candidates' shape; queries come with the rows' weights."""
        total.addmm_(score_gradients.T, queries)

    def add_bias_gradient(self, score_gradients: Tensor, weight: Tensor, total: Tensor) -> None:
        """Add slopes times weight `[m, 1]` to `total`, of the bias's shape."""
        total.addmv_(score_gradients.T, weight[:, 0])

    def _product(self, queries: Tensor, out: Tensor) -> Tensor:
        return torch.mm(queries, self.candidates.T, out=out)


class RoundedTiles(SharedTiles):
    """The same with every operand rounded to bfloat16; scores and sums over tiles stay float32."""

    def __init__(self, num_rows: int, candidates: Tensor, bias: Tensor | None, drawn: Tensor | None) -> None:
        super().__init__(num_rows, candidates, bias, drawn)
        self.rounded = candidates.bfloat16()
        self.rounded_float32 = self.rounded.float()

    def query_gradient(self, score_gradients: Tensor) -> Tensor:  # noqa: D102
        return torch.mm(score_gradients.bfloat16(), self.rounded).float()

    def add_candidate_gradient(self, score_gradients: Tensor, queries: Tensor, total: Tensor) -> None:  # noqa: D102
        total += torch.mm(score_gradients.bfloat16().T, queries.bfloat16())

    def _product(self, queries: Tensor, out: Tensor) -> Tensor:
        if queries.is_cuda:
            return out.copy_(torch.mm(queries.bfloat16(), self.rounded.T, out_dtype=torch.float32))
        # A CPU's bfloat16 product rounds its result too. Rounded operands in float32 may go through bfloat16 units
        # without any further loss, and do where the processor has them.
        with _bfloat16_inside_float32():
            return torch.mm(queries.bfloat16().float(), self.rounded_float32.T, out=out)


class OwnTiles:
    """Each row has candidates of its own: given as such, or few drawn from very many, whose vectors are gathered.

    Those that are given are larger than all scores, and make one tile. The methods are those of `SharedTiles`.
    """

    def __init__(self, candidates: Tensor, bias: Tensor | None, drawn: Tensor | None) -> None:
        self.candidates, self.bias, self.drawn = candidates, bias, drawn

    def rows(self) -> Iterator[slice]:  # noqa: D102
        if self.drawn is None:
            return slices(len(self.candidates), len(self.candidates))
        num_rows, num_drawn = self.drawn.shape
        return slices(num_rows, max(1, TILE_SCORES // 4 // (num_drawn * self.candidates.shape[1])))

    def scores(self, queries: Tensor, tile: slice) -> Tensor:  # noqa: D102
        self.places: Any = tile if self.drawn is None else self.drawn[tile]
        self.vectors = self.candidates[self.places]  # [m, N, D]: a view, or gathered
        scores = torch.einsum("md,mnd->mn", queries, self.vectors)
        return scores if self.bias is None else scores.add_(self.bias[self.places])

    def spread(self, score_gradients: Tensor, tile: slice) -> Tensor:  # noqa: D102
        return score_gradients

    def query_gradient(self, score_gradients: Tensor) -> Tensor:  # noqa: D102
        return torch.einsum("mn,mnd->md", score_gradients, self.vectors)

    def add_candidate_gradient(self, score_gradients: Tensor, queries: Tensor, total: Tensor) -> None:  # noqa: D102
        out = total[self.places] if self.drawn is None else self.vectors
        torch.mul(rearrange(score_gradients, "m n -> m n 1"), rearrange(queries, "m d -> m 1 d"), out=out)
        if self.drawn is not None:
            total.index_add_(0, self.places.flatten(), rearrange(out, "m n d -> (m n) d"))

    def add_bias_gradient(self, score_gradients: Tensor, weight: Tensor, total: Tensor) -> None:  # noqa: D102
        if self.drawn is None:
            torch.mul(score_gradients, weight, out=total[self.places])
        else:
            total.index_add_(0, self.places.flatten(), (score_gradients * weight).flatten())


class DrawnTiles(OwnTiles):
    """Few drawn from many, by drawn.c on a CPU: their vectors are read where they are."""

    drawn: Tensor

    def rows(self) -> Iterator[slice]:  # noqa: D102
        num_rows, num_drawn = self.drawn.shape
        return slices(num_rows, max(1, TILE_SCORES // 4 // num_drawn))

    def scores(self, queries: Tensor, tile: slice) -> Tensor:  # noqa: D102
        self.places = self.drawn[tile].contiguous()
        scores = queries.new_empty(self.places.shape)
        self._multiply("scores", self.places.shape, queries, self.candidates, scores)
        return scores if self.bias is None else scores.add_(self.bias[self.places])

    def query_gradient(self, score_gradients: Tensor) -> Tensor:  # noqa: D102
        gradient = score_gradients.new_empty(len(score_gradients), self.candidates.shape[1])
        self._multiply("by_queries", self.places.shape, score_gradients, self.candidates, gradient)
        return gradient

    def add_candidate_gradient(self, score_gradients: Tensor, queries: Tensor, total: Tensor) -> None:  # noqa: D102
        self._multiply("by_candidates", (*self.places.shape, len(total)), score_gradients, queries, total)

    def _multiply(self, name: str, sizes: Sequence[int], left: Tensor, right: Tensor, out: Tensor) -> None:
        tensors = (left.contiguous(), right.contiguous(), self.places, out)
        call(SOURCE, f"drawn_{name}", (*sizes, self.candidates.shape[1]), tensors)


def slices(num_rows: int, size: int) -> Iterator[slice]:
    """All rows, so many at a time."""
    return (slice(start, min(start + size, num_rows)) for start in range(0, num_rows, size))


@contextmanager
def _bfloat16_inside_float32() -> Iterator[None]:
    before = _mkldnn_products.fp32_precision
    _mkldnn_products.fp32_precision = "bf16"
    try:
        yield
    finally:
        _mkldnn_products.fp32_precision = before
