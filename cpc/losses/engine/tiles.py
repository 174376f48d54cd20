"""The arithmetic of a block of rows, a tile of rows at a time: scores, losses, and the products of their gradients.

On a GPU with Triton one kernel computes the losses of a tile (`kernel.py`), elsewhere `score_gradients.py`.

M rows of the block, N of its candidates, R drawn negatives, D latent dim; m counts the rows of a tile.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cpc.losses.engine import score_gradients
from cpc.losses.engine.blocks import Block
from cpc.losses.engine.score_gradients import LossAndGradients
from cpc.native.compiled import REAL, CFunction, compiled, has_triton, source

ROUNDINGS = ("float32", "tf32", "bf16")
_PRODUCTS: dict[str, Any] = {"cpu": torch.backends.mkldnn.matmul, "cuda": torch.backends.cuda.matmul}  # type: ignore[attr-defined]
TILE_ROWS = 1024
TILE_SCORES = 2**24  # 64 MiB of float32
GPU_SHARE = 256  # of a GPU's memory, for the scores of a tile: 300 MB of 80 GB. Products of smaller tiles are slower.
GPU_TILE_ROWS = 2**14  # keeps memory low where candidates are few; a guess (docs/decisions/losses.md)
# With more candidates per drawn negative, a CPU multiplies faster with the drawn ones only, in C, than with all.
# `python -m benchmarks.loss --rule` measures it.
DRAWN_BEYOND = 2
SOURCE = source("drawn.c")


def score_dtype(queries: Tensor) -> torch.dtype:
    """Return the dtype of scores and sums: float64 for float64 queries, else float32, also under autocast."""
    return torch.float64 if queries.dtype == torch.float64 else torch.float32


def rounding_of(compute: str, device: str, dtype: torch.dtype) -> str:
    """Return how products are rounded. `auto` rounds nothing on a CPU; on a GPU `tf32`, or `bf16` for bf16 queries."""
    if compute != "auto":
        return compute
    if device != "cuda" or dtype == torch.float64:
        return "float32"
    return "bf16" if dtype == torch.bfloat16 else "tf32"


@contextmanager
def products(rounding: str, device: str) -> Iterator[None]:
    """Compute products on a device in this rounding, whatever autocast and torch's own switches say.

    On a CPU `bf16` products use its bfloat16 units, if any. On a GPU, operands of 8 bits lose nothing in TF32.
    """
    precision = {"float32": "ieee", "tf32": "tf32", "bf16": "tf32"}[rounding] if device == "cuda" else "bf16"
    is_switched = device == "cuda" or rounding == "bf16"
    switches = _PRODUCTS[device] if is_switched else SimpleNamespace(fp32_precision=None)
    before = switches.fp32_precision
    with torch.no_grad(), torch.autocast(device, enabled=False):
        try:
            switches.fp32_precision = precision
            yield
        finally:
            switches.fp32_precision = before


def has_kernel(scores: Tensor) -> bool:
    """Return whether the Triton kernel computes losses from scores of this device and dtype."""
    return scores.is_cuda and scores.dtype != torch.float64 and has_triton()


def choose_tiles(
    block: Block, num_rows: int, candidates: Tensor, bias: Tensor | None, drawn: Tensor | None, rounding: str
) -> "SharedTiles | PerRowTiles | DrawnTiles":
    """Return the fastest tiles of a block; `drawn` are columns of the block, `[M, R]`."""
    if candidates.ndim == 3:
        return PerRowTiles(candidates, bias)
    is_few = drawn is not None and len(candidates) > DRAWN_BEYOND * drawn.shape[1]
    in_c = candidates.device.type == "cpu" and compiled(SOURCE) is not None and not has_kernel(candidates)
    if drawn is None or not is_few or not in_c:
        return SharedTiles(block, num_rows, candidates, bias, drawn, rounding)
    assert block.positives is not None
    return DrawnTiles(torch.cat([block.positives, drawn], 1), candidates, bias)


class SharedTiles:
    """All candidates are scored in one product; candidates that a row does not have, or has several times, are counted.

    Candidates may be bfloat16, for the kernel. Scores and score gradients then are bfloat16 too, and sums are float32.
    The scores of the next tile overwrite the memory of a tile, which has `tile_rows` rows.
    """

    def __init__(
        self, block: Block, num_rows: int, candidates: Tensor, bias: Tensor | None, drawn: Tensor | None, rounding: str
    ) -> None:
        self.block, self.candidates, self.bias, self.drawn = block, candidates, bias, drawn
        self.tile_rows = max(1, min(num_rows, num_tile_rows(candidates)))
        self.scratch = candidates.new_empty(self.tile_rows, len(candidates))
        self.factor = candidates.bfloat16() if rounding == "bf16" else candidates  # of the products of gradients

    def scores(self, queries: Float[Tensor, "m D"], tile: slice) -> Tensor:
        """Return the scores `[m, N]`, which callers may overwrite."""
        return torch.mm(queries.to(self.candidates.dtype), self.candidates.T, out=self.scratch[: len(queries)])

    def row_inputs(self, tile: slice) -> tuple[Tensor | None, ...]:
        """Return `own`, `num_times`, `sequence` and `bias` of `loss_and_gradients`."""
        block = self.block
        own = None if block.positives is None else block.positives[tile]
        num_times, sequence = block.candidate_mask, None if block.sequence is None else block.sequence[tile]
        if self.drawn is not None:
            drawn, sequence = self.drawn[tile], None
            counts = torch.uint8 if drawn.shape[1] < 2**8 else torch.int16 if drawn.shape[1] < 2**15 else torch.int32
            num_times = drawn.new_zeros(len(drawn), len(self.candidates), dtype=counts)
            num_times.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=counts))
        return own, num_times, sequence, self.bias

    def query_gradient(self, score_grads: Tensor) -> Tensor:
        """Return score gradients times candidates, of the shape `[m, D]`."""
        return _sum_product(score_grads.to(self.factor.dtype), self.factor)

    def add_candidate_gradient(self, score_grads: Tensor, queries: Tensor, total: Tensor) -> None:
        """Add score gradients times weighted queries to `total`, of the candidates' shape."""
        score_grads, queries = score_grads.to(self.factor.dtype).T, queries.to(self.factor.dtype)
        if self.factor.dtype == total.dtype:
            total.addmm_(score_grads, queries)
        elif total.is_cuda and total.dtype == torch.float32:
            torch.addmm(total, score_grads, queries, out_dtype=torch.float32, out=total)
        else:
            total += _sum_product(score_grads, queries)

    def add_bias_gradient(self, score_grads: Tensor, weight: Tensor, total: Tensor) -> None:
        """Add score gradients times weights `[m, 1]` to `total`, of the bias's shape."""
        total += _sum_product(score_grads.T, weight.to(score_grads.dtype))[:, 0]


def _function(name: str, left: str, right: str, out: str) -> CFunction:
    """Declare a function of drawn.c. Its arguments are two operands, the drawn indices, and the result."""

    def arguments(num_queries: int, num_drawn: int, num_candidates: int, dim: int) -> dict[str, Any]:
        rows, drawn, columns = (num_queries, dim), (num_queries, num_drawn), (num_candidates, dim)
        shapes = {"queries": rows, "queries_grad": rows, "candidates": columns, "candidates_grad": columns}
        operands = {each: (REAL, shapes.get(each, drawn)) for each in (left, right)}
        return operands | {"drawn": (torch.int64, drawn), out: (REAL, shapes.get(out, drawn))}

    return CFunction(SOURCE, name, arguments)


SCORES = _function("drawn_scores", "queries", "candidates", "scores")
BY_QUERIES = _function("drawn_by_queries", "score_grads", "candidates", "queries_grad")
BY_CANDIDATES = _function("drawn_by_candidates", "score_grads", "queries", "candidates_grad")


class DrawnTiles:
    """The methods of `SharedTiles`, for scores of the positive and the drawn negatives of each row.

    `drawn` is `[M, 1 + R]`, the positive first; so are the scores.
    """

    def __init__(self, drawn: Int[Tensor, "M _"], candidates: Tensor, bias: Tensor | None) -> None:
        self.drawn, self.candidates, self.bias = drawn, candidates, bias
        self.tile_rows = max(1, TILE_SCORES // 4 // drawn.shape[1])

    def scores(self, queries: Float[Tensor, "m D"], tile: slice) -> Tensor:  # noqa: D102
        self.index = self.drawn[tile].contiguous()
        scores = queries.new_empty(self.index.shape)
        self._multiply(SCORES, queries, self.candidates, scores)
        return scores if self.bias is None else scores.add_(self.bias[self.index])

    def row_inputs(self, tile: slice) -> tuple[Tensor | None, ...]:  # noqa: D102
        return (torch.zeros_like(self.index[:, :1]),)

    def query_gradient(self, score_grads: Tensor) -> Tensor:  # noqa: D102
        gradient = score_grads.new_empty(len(score_grads), self.candidates.shape[1])
        self._multiply(BY_QUERIES, score_grads, self.candidates, gradient)
        return gradient

    def add_candidate_gradient(self, score_grads: Tensor, queries: Tensor, total: Tensor) -> None:  # noqa: D102
        self._multiply(BY_CANDIDATES, score_grads, queries, total)

    def add_bias_gradient(self, score_grads: Tensor, weight: Tensor, total: Tensor) -> None:  # noqa: D102
        total.index_add_(0, self.index.flatten(), (score_grads * weight).flatten())

    def _multiply(self, function: CFunction, left: Tensor, right: Tensor, out: Tensor) -> None:
        tensors = (left.contiguous(), right.contiguous(), self.index, out)
        if not function((*self.index.shape, *self.candidates.shape), (), tensors):
            raise ValueError(f"indices of drawn candidates must be from 0 to {len(self.candidates) - 1}")


class PerRowTiles:
    """The methods of `SharedTiles`, for separate candidates of each row, `[M, N, D]`, in one tile."""

    def __init__(self, candidates: Tensor, bias: Tensor | None) -> None:
        self.candidates, self.bias, self.tile_rows = candidates, bias, max(1, len(candidates))

    def scores(self, queries: Float[Tensor, "M D"], tile: slice) -> Tensor:  # noqa: D102
        scores = torch.einsum("md,mnd->mn", queries, self.candidates)
        return scores if self.bias is None else scores.add_(self.bias)

    def row_inputs(self, tile: slice) -> tuple[Tensor | None, ...]:  # noqa: D102
        return ()

    def query_gradient(self, score_grads: Tensor) -> Tensor:  # noqa: D102
        return torch.einsum("mn,mnd->md", score_grads, self.candidates)

    def add_candidate_gradient(self, score_grads: Tensor, queries: Tensor, total: Tensor) -> None:  # noqa: D102
        torch.mul(score_grads[..., None], queries[:, None], out=total)

    def add_bias_gradient(self, score_grads: Tensor, weight: Tensor, total: Tensor) -> None:  # noqa: D102
        torch.mul(score_grads, weight, out=total)


def loss_and_gradients(form: str, scores: Tensor, *arguments: Any) -> tuple[Tensor, LossAndGradients]:
    """Call `score_gradients.loss_and_gradients`, or the kernel if it takes these scores."""
    if not has_kernel(scores):
        return score_gradients.loss_and_gradients(form, scores, *arguments)
    from cpc.losses.engine import kernel  # Triton is not installed everywhere

    return kernel.loss_and_gradients(form, scores, *arguments)


def num_tile_rows(candidates: Tensor) -> int:
    """Return the number of rows whose scores fill a tile of this device."""
    if not candidates.is_cuda:
        return min(TILE_ROWS, max(64, TILE_SCORES // len(candidates)))
    memory = torch.cuda.get_device_properties(candidates.device).total_memory
    return min(GPU_TILE_ROWS, max(64, memory // GPU_SHARE // (len(candidates) * candidates.element_size())))


def _sum_product(left: Tensor, right: Tensor) -> Tensor:
    """Return a product that is summed, and returned, in float32 or float64."""
    if left.dtype != torch.bfloat16:
        return torch.mm(left, right)
    return torch.mm(left, right, out_dtype=torch.float32) if left.is_cuda else torch.mm(left, right).float()
