"""The arithmetic of a block of rows, a tile of rows at a time: scores, losses, and the products of their gradients.

On a GPU with Triton one kernel computes the losses of a tile (`kernel.py`), elsewhere `score_gradients.py`.

M rows of the block, N of its candidates, R drawn negatives, D latent dim; m counts the rows of a tile.
"""

import functools
import importlib.util
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from cpc.losses.engine.blocks import Block
from cpc.losses.engine.score_gradients import LossAndGradients, ScoreCorrections, loss_and_gradients
from cpc.native.compiled import REAL, CFunction, compiled, source

ROUNDINGS = ("float32", "tf32", "bf16")
TILE_ROWS = 1024
TILE_SCORES = 2**24  # 64 MiB of float32
GPU_SHARE = 256  # of a GPU's memory, for the scores of a tile: 300 MB of 80 GB. Products of smaller tiles are slower.
# If there are more candidates per drawn negative than this number, it is faster to multiply only with the drawn
# candidates than to compute all scores and select from them. `python -m benchmarks.loss --rule` measures these numbers.
DRAWN_BEYOND = 2  # products in C
GATHER_BEYOND = 100  # products in torch, which gathers the vectors
SOURCE = source("drawn.c")
_log = logging.getLogger(__name__)
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
_products: dict[str, Any] = {"cpu": torch.backends.mkldnn.matmul, "cuda": torch.backends.cuda.matmul}  # type: ignore[attr-defined]


def rounding_of(compute: str, queries: Tensor) -> str:
    """Return how products are rounded. `auto` rounds nothing on a CPU; on a GPU `tf32`, or `bf16` for bf16 queries."""
    if compute != "auto":
        return compute
    if not queries.is_cuda or queries.dtype == torch.float64:
        return "float32"
    return "bf16" if queries.dtype == torch.bfloat16 else "tf32"


def has_kernel(scores: Tensor) -> bool:
    """Return whether the Triton kernel computes losses from scores of this device and dtype."""
    return scores.is_cuda and scores.dtype != torch.float64 and _has_triton()


@functools.cache
def _has_triton() -> bool:
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), "")
    missing = [] if importlib.util.find_spec("triton") else ["the package triton"]
    missing += [] if shutil.which(compiler.split(" ")[0]) else ["a C compiler, which Triton needs"]
    if missing:
        _log.warning("losses run in torch instead of a kernel, which is slower: %s is missing", " and ".join(missing))
    return not missing


def choose_tiles(
    block: Block, num_rows: int, candidates: Tensor, bias: Tensor | None, negatives: Tensor | None, compute: str
) -> "SharedTiles | PerRowTiles":
    """Return the fastest tiles to score all candidates of a block, or only the drawn negatives and the positive.

    Candidates are `[N, D]`, shared by all rows, or `[M, N, D]`; a bias is `[N]` or `[M, N]`; negatives are `[M, R]`
    columns of the block.
    """
    if candidates.ndim == 3:
        return PerRowTiles(block, candidates, bias)
    if has_kernel(candidates):
        return KernelTiles(block, num_rows, candidates, bias, negatives, compute)
    if negatives is None:
        return (RoundedTiles if compute == "bf16" else SharedTiles)(block, num_rows, candidates, bias)
    assert block.positives is not None
    drawn = torch.cat([block.positives, negatives], 1)
    num_per_negative = len(candidates) / negatives.shape[1]
    can_use_c = candidates.device.type == "cpu" and compute != "bf16"
    if can_use_c and num_per_negative > DRAWN_BEYOND and compiled(SOURCE) is not None:
        return DrawnTiles(block, candidates, bias, drawn)
    if num_per_negative > GATHER_BEYOND:
        return PerRowTiles(block, candidates, bias, drawn)
    return (RoundedTiles if compute == "bf16" else SharedTiles)(block, num_rows, candidates, bias, drawn)


class Tiles:
    """The tiles of a block. Subclasses define the products.

    The gradients of a tile must be computed before the scores of the next tile, which may overwrite its memory.
    Arguments, sums and results have the candidates' dtype.

    Attributes:
        drawn: `[M, 1 + R]`, the columns that are selected for each row, its positive first; None: all are scored.
    """

    def __init__(self, block: Block, candidates: Tensor, bias: Tensor | None, drawn: Tensor | None = None) -> None:
        self.block, self.candidates, self.bias, self.drawn = block, candidates, bias, drawn

    def losses(
        self, form: str, scores: Tensor, tile: slice, corrections: ScoreCorrections, targets: Tensor | None
    ) -> tuple[Tensor, LossAndGradients]:
        """Return accuracies, losses and score gradients; the scores are overwritten."""
        block, own, mask = self.block, None, None
        if self.drawn is not None:
            own = torch.zeros_like(self.drawn[tile, :1])
        elif block.positives is not None:
            own = block.positives[tile]
            if block.candidate_mask is not None and block.sequence is not None:
                mask = block.candidate_mask[block.sequence[tile]]
        if has_kernel(scores):
            from cpc.losses.engine import kernel  # Triton is not installed everywhere

            return kernel.loss_and_gradients(form, scores, corrections, own, targets, mask)
        return loss_and_gradients(form, scores, corrections, own, targets, mask)


class SharedTiles(Tiles):
    """All candidates are scored in one product; if negatives were drawn, their scores are selected."""

    def __init__(
        self, block: Block, num_rows: int, candidates: Tensor, bias: Tensor | None, drawn: Tensor | None = None
    ) -> None:
        super().__init__(block, candidates, bias, drawn)
        self.num_rows = num_rows
        size = max(64, TILE_SCORES // len(candidates))
        size = min(size, TILE_ROWS) if candidates.device.type == "cpu" else gpu_tile_rows(candidates)
        self.scratch = candidates.new_empty(min(num_rows, size), len(candidates))

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

    def __init__(
        self, block: Block, num_rows: int, candidates: Tensor, bias: Tensor | None, drawn: Tensor | None = None
    ) -> None:
        super().__init__(block, num_rows, candidates, bias, drawn)
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
        with inside_float32("cpu", "bf16"):
            return torch.mm(queries.bfloat16().float(), self.rounded_float32.T, out=out)


class KernelTiles(SharedTiles):
    """All candidates are scored in large products; the kernel masks and counts them, and adds the bias.

    With `bf16`, scores and score gradients are bfloat16 too, which halves the memory that is read and written. Sums are
    float32.
    """

    def __init__(
        self,
        block: Block,
        num_rows: int,
        candidates: Tensor,
        bias: Tensor | None,
        negatives: Tensor | None,
        compute: str,
    ) -> None:
        self.negatives = negatives
        rounded = candidates.bfloat16() if compute == "bf16" else candidates
        super().__init__(block, num_rows, rounded, bias)

    def scores(self, queries: Tensor, tile: slice) -> Tensor:  # noqa: D102
        return torch.mm(queries.to(self.candidates.dtype), self.candidates.T, out=self.scratch[: len(queries)])

    def losses(  # noqa: D102
        self, form: str, scores: Tensor, tile: slice, corrections: ScoreCorrections, targets: Tensor | None
    ) -> tuple[Tensor, LossAndGradients]:
        from cpc.losses.engine import kernel  # Triton is not installed everywhere

        block = self.block
        own = None if block.positives is None else block.positives[tile]
        num_times, sequence = block.candidate_mask, None if block.sequence is None else block.sequence[tile]
        if self.negatives is not None:
            drawn, sequence = self.negatives[tile], None
            counts = torch.uint8 if drawn.shape[1] < 2**8 else torch.int16 if drawn.shape[1] < 2**15 else torch.int32
            num_times = torch.zeros(scores.shape, dtype=counts, device=scores.device)
            num_times.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=counts))
        return kernel.loss_and_gradients(form, scores, corrections, own, targets, num_times, sequence, self.bias)

    def query_gradient(self, score_grads: Tensor) -> Tensor:  # noqa: D102
        return self._float32_product(score_grads, self.candidates)

    def add_candidate_gradient(self, score_grads: Tensor, queries: Tensor, total: Tensor) -> None:  # noqa: D102
        total += self._float32_product(score_grads.T, queries.to(score_grads.dtype))

    def add_bias_gradient(self, score_grads: Tensor, weight: Tensor, total: Tensor) -> None:  # noqa: D102
        total += self._float32_product(score_grads.T, weight.to(score_grads.dtype))[:, 0]

    def _float32_product(self, left: Tensor, right: Tensor) -> Tensor:
        if left.dtype == torch.float32:
            return torch.mm(left, right)
        return torch.mm(left, right, out_dtype=torch.float32) if left.is_cuda else torch.mm(left.float(), right.float())


class PerRowTiles(Tiles):
    """Tiles for separate candidates of each row: given as `[M, N, D]`, or drawn from many and gathered.

    Candidates given as `[M, N, D]` make one tile, since they take more memory than all scores. The methods are those of
    `SharedTiles`.
    """

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


def gpu_tile_rows(candidates: Tensor) -> int:
    """Return the number of rows whose scores against all candidates take a fixed share of the GPU's memory."""
    if not candidates.is_cuda:  # a tensor without values, or the kernel in Triton's interpreter
        return TILE_ROWS
    memory = torch.cuda.get_device_properties(candidates.device).total_memory
    return max(64, memory // GPU_SHARE // (len(candidates) * candidates.element_size()))


@contextmanager
def inside_float32(device: str, precision: str) -> Iterator[None]:
    """Compute float32 products on a device in this precision of torch, such as `tf32`, `bf16` or `ieee` (exact)."""
    products = _products[device]
    before = products.fp32_precision
    products.fp32_precision = precision
    try:
        yield
    finally:
        products.fp32_precision = before
