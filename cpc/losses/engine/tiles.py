"""The matrix products of a block of rows, a tile of rows at a time: scores, and gradients given d loss / d score.

M rows of the block, N of its candidates, R drawn negatives, D latent dim; m counts the rows of a tile.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from cpc.native.compiled import REAL, CFunction, compiled, source

ROUNDINGS = ("float32", "bf16")
TILE_ROWS = 1024
TILE_SCORES = 2**24  # 64 MiB of float32
# If there are more candidates per drawn negative than this number, it is faster to multiply only with the drawn
# candidates than to compute all scores and select from them. `python -m benchmarks.loss --rule` measures these numbers.
DRAWN_BEYOND = 2  # products in C
GATHER_BEYOND = 100  # products in torch, which gathers the vectors
SOURCE = source("drawn.c")
DRAWN_SCORES = CFunction(
    SOURCE,
    "drawn_scores",
    lambda num_queries, num_drawn, num_candidates, dim: {
        "queries": (REAL, (num_queries, dim)),
        "candidates": (REAL, (num_candidates, dim)),
        "drawn": (torch.int64, (num_queries, num_drawn)),
        "scores": (REAL, (num_queries, num_drawn)),
    },
)
DRAWN_BY_QUERIES = CFunction(
    SOURCE,
    "drawn_by_queries",
    lambda num_queries, num_drawn, num_candidates, dim: {
        "score_grads": (REAL, (num_queries, num_drawn)),
        "candidates": (REAL, (num_candidates, dim)),
        "drawn": (torch.int64, (num_queries, num_drawn)),
        "queries_grad": (REAL, (num_queries, dim)),
    },
)
DRAWN_BY_CANDIDATES = CFunction(
    SOURCE,
    "drawn_by_candidates",
    lambda num_queries, num_drawn, num_candidates, dim: {
        "score_grads": (REAL, (num_queries, num_drawn)),
        "queries": (REAL, (num_queries, dim)),
        "drawn": (torch.int64, (num_queries, num_drawn)),
        "candidates_grad": (REAL, (num_candidates, dim)),
    },
)
_mkldnn_products: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]


def choose_tiles(
    num_rows: int, candidates: Tensor, bias: Tensor | None, drawn: Tensor | None, compute: str
) -> "SharedTiles | PerRowTiles":
    """Return the fastest tiles to score all candidates, or only the drawn ones: `[M, 1 + R]` with the positive first.

    Candidates are `[N, D]`, shared by all rows, or `[M, N, D]`; a bias is `[N]` or `[M, N]`.
    """
    if candidates.ndim == 3:
        return PerRowTiles(candidates, bias, None)
    if drawn is not None:
        num_per_negative = len(candidates) / (drawn.shape[1] - 1)
        can_use_c = candidates.device.type == "cpu" and compute == "float32"
        if can_use_c and num_per_negative > DRAWN_BEYOND and compiled(SOURCE) is not None:
            return DrawnTiles(candidates, bias, drawn)
        if num_per_negative > GATHER_BEYOND:
            return PerRowTiles(candidates, bias, drawn)
    return (RoundedTiles if compute == "bf16" else SharedTiles)(num_rows, candidates, bias, drawn)


class SharedTiles:
    """All candidates are scored in one product; if negatives were drawn, their scores are selected.

    The gradients of a tile must be computed before the scores of the next tile, which overwrite its memory. Arguments,
    sums and results have the candidates' dtype.
    """

    def __init__(self, num_rows: int, candidates: Tensor, bias: Tensor | None, drawn: Tensor | None) -> None:
        self.num_rows, self.candidates, self.bias, self.drawn = num_rows, candidates, bias, drawn
        size = min(num_rows, TILE_ROWS, max(64, TILE_SCORES // len(candidates)))
        self.scratch = candidates.new_empty(size, len(candidates))

    def rows(self) -> Iterator[slice]:
        """Return the tiles as slices of the block's rows."""
        return slices(self.num_rows, len(self.scratch))

    def scores(self, queries: Tensor, tile: slice) -> Tensor:
        """Return the scores `[m, N]` or `[m, 1 + R]` of queries `[m, D]`; callers may overwrite them."""
        self.tile_scores = self._product(queries, self.scratch[: len(queries)])
        if self.bias is not None:
            self.tile_scores += self.bias
        return self.tile_scores if self.drawn is None else self.tile_scores.gather(1, self.drawn[tile])

    def scatter(self, score_grads: Tensor, tile: slice) -> Tensor:
        """Return score gradients in the form that the methods below take: `[m, N]` if scores were selected from all."""
        if self.drawn is None:
            return score_grads
        return self.tile_scores.zero_().scatter_add_(1, self.drawn[tile], score_grads)

    def query_gradient(self, score_grads: Tensor) -> Tensor:
        """Return scattered score gradients times candidates, of the shape `[m, D]`."""
        return torch.mm(score_grads, self.candidates)

    def add_candidate_gradient(self, score_grads: Tensor, queries: Tensor, total: Tensor) -> None:
        """Add scattered score gradients times weighted queries to `total`, of the candidates' shape."""
        total.addmm_(score_grads.T, queries)

    def add_bias_gradient(self, score_grads: Tensor, weight: Tensor, total: Tensor) -> None:
        """Add scattered score gradients times weights `[m, 1]` to `total`, of the bias's shape."""
        total.addmv_(score_grads.T, weight[:, 0])

    def _product(self, queries: Tensor, out: Tensor) -> Tensor:
        return torch.mm(queries, self.candidates.T, out=out)


class RoundedTiles(SharedTiles):
    """`SharedTiles` that rounds all operands to bfloat16; scores and sums over tiles stay float32."""

    def __init__(self, num_rows: int, candidates: Tensor, bias: Tensor | None, drawn: Tensor | None) -> None:
        super().__init__(num_rows, candidates, bias, drawn)
        self.rounded = candidates.bfloat16()
        self.rounded_float32 = self.rounded.float()

    def query_gradient(self, score_grads: Tensor) -> Tensor:  # noqa: D102
        return torch.mm(score_grads.bfloat16(), self.rounded).float()

    def add_candidate_gradient(self, score_grads: Tensor, queries: Tensor, total: Tensor) -> None:  # noqa: D102
        total += torch.mm(score_grads.bfloat16().T, queries.bfloat16())

    def _product(self, queries: Tensor, out: Tensor) -> Tensor:
        if queries.is_cuda:
            return out.copy_(torch.mm(queries.bfloat16(), self.rounded.T, out_dtype=torch.float32))
        # A bfloat16 product on a CPU rounds its result too. A float32 product of rounded operands does not round its
        # result, and uses the processor's bfloat16 units if it has any.
        with _bfloat16_inside_float32():
            return torch.mm(queries.bfloat16().float(), self.rounded_float32.T, out=out)


class PerRowTiles:
    """Tiles for separate candidates of each row: given as `[M, N, D]`, or drawn from many and gathered.

    Candidates given as `[M, N, D]` make one tile, since they take more memory than all scores. The methods are those of
    `SharedTiles`.
    """

    def __init__(self, candidates: Tensor, bias: Tensor | None, drawn: Tensor | None) -> None:
        self.candidates, self.bias, self.drawn = candidates, bias, drawn

    def rows(self) -> Iterator[slice]:  # noqa: D102
        if self.drawn is None:
            return slices(len(self.candidates), len(self.candidates))
        num_rows, num_drawn = self.drawn.shape
        return slices(num_rows, max(1, TILE_SCORES // 4 // (num_drawn * self.candidates.shape[1])))

    def scores(self, queries: Tensor, tile: slice) -> Tensor:  # noqa: D102
        self.index: Any = tile if self.drawn is None else self.drawn[tile]
        self.vectors = self.candidates[self.index]  # [m, N, D]: a view, or gathered
        scores = torch.einsum("md,mnd->mn", queries, self.vectors)
        return scores if self.bias is None else scores.add_(self.bias[self.index])

    def scatter(self, score_grads: Tensor, tile: slice) -> Tensor:  # noqa: D102
        return score_grads

    def query_gradient(self, score_grads: Tensor) -> Tensor:  # noqa: D102
        return torch.einsum("mn,mnd->md", score_grads, self.vectors)

    def add_candidate_gradient(self, score_grads: Tensor, queries: Tensor, total: Tensor) -> None:  # noqa: D102
        out = total[self.index] if self.drawn is None else self.vectors
        torch.mul(rearrange(score_grads, "m n -> m n 1"), rearrange(queries, "m d -> m 1 d"), out=out)
        if self.drawn is not None:
            total.index_add_(0, self.index.flatten(), rearrange(out, "m n d -> (m n) d"))

    def add_bias_gradient(self, score_grads: Tensor, weight: Tensor, total: Tensor) -> None:  # noqa: D102
        if self.drawn is None:
            torch.mul(score_grads, weight, out=total[self.index])
        else:
            total.index_add_(0, self.index.flatten(), (score_grads * weight).flatten())


class DrawnTiles(PerRowTiles):
    """Tiles for few candidates drawn from many, on a CPU; drawn.c reads the vectors without a gathered copy."""

    drawn: Tensor

    def rows(self) -> Iterator[slice]:  # noqa: D102
        num_rows, num_drawn = self.drawn.shape
        return slices(num_rows, max(1, TILE_SCORES // 4 // num_drawn))

    def scores(self, queries: Tensor, tile: slice) -> Tensor:  # noqa: D102
        self.index = self.drawn[tile].contiguous()
        scores = queries.new_empty(self.index.shape)
        self._multiply(DRAWN_SCORES, queries, self.candidates, scores)
        return scores if self.bias is None else scores.add_(self.bias[self.index])

    def query_gradient(self, score_grads: Tensor) -> Tensor:  # noqa: D102
        gradient = score_grads.new_empty(len(score_grads), self.candidates.shape[1])
        self._multiply(DRAWN_BY_QUERIES, score_grads, self.candidates, gradient)
        return gradient

    def add_candidate_gradient(self, score_grads: Tensor, queries: Tensor, total: Tensor) -> None:  # noqa: D102
        self._multiply(DRAWN_BY_CANDIDATES, score_grads, queries, total)

    def _multiply(self, function: CFunction, left: Tensor, right: Tensor, out: Tensor) -> None:
        tensors = (left.contiguous(), right.contiguous(), self.index, out)
        if not function((*self.index.shape, *self.candidates.shape), (), tensors):
            raise ValueError(f"indices of drawn candidates must be from 0 to {len(self.candidates) - 1}")


def slices(num_rows: int, size: int) -> Iterator[slice]:
    """Return slices of at most `size` rows that cover all rows."""
    return (slice(start, min(start + size, num_rows)) for start in range(0, num_rows, size))


@contextmanager
def _bfloat16_inside_float32() -> Iterator[None]:
    before = _mkldnn_products.fp32_precision
    _mkldnn_products.fp32_precision = "bf16"
    try:
        yield
    finally:
        _mkldnn_products.fp32_precision = before
