"""How the operands of a loss's products are rounded."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

ROUNDINGS = ("float32", "tf32", "bf16")
_PRODUCTS: dict[str, Any] = {"cpu": torch.backends.mkldnn.matmul, "cuda": torch.backends.cuda.matmul}  # type: ignore[attr-defined]


def score_dtype(queries: Tensor) -> torch.dtype:
    """Return the dtype of scores and sums: float64 for float64 queries, else float32, also under autocast."""
    return torch.float64 if queries.dtype == torch.float64 else torch.float32


def rounding_of(compute: str, queries: Tensor) -> str:
    """Return how products are rounded. `auto` rounds nothing on a CPU; on a GPU `tf32`, or `bf16` for bf16 queries."""
    if compute != "auto":
        return compute
    if not queries.is_cuda or queries.dtype == torch.float64:
        return "float32"
    return "bf16" if queries.dtype == torch.bfloat16 else "tf32"


@contextmanager
def products(rounding: str, device: str) -> Iterator[None]:
    """Compute products on a device in this rounding, whatever autocast and torch's own switches say.

    On a CPU `bf16` products use its bfloat16 units, if it has any, and float32 otherwise. On a GPU, operands that were
    rounded to bfloat16 lose nothing in TF32.
    """
    precision = {"float32": "ieee", "tf32": "tf32", "bf16": "tf32"}[rounding] if device == "cuda" else "bf16"
    switches = _PRODUCTS[device] if device == "cuda" or rounding == "bf16" else None
    before = None if switches is None else switches.fp32_precision
    with torch.no_grad(), torch.autocast(device, enabled=False):
        try:
            if switches is not None:
                switches.fp32_precision = precision
            yield
        finally:
            if switches is not None:
                switches.fp32_precision = before
