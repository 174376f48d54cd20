"""Settings of this process that decide how fast a CPU computes, none of which changes what it computes.

There are three beside the allocator's: denormal numbers become zeros, on AMD processors float32 matrix products go
through oneDNN rather than MKL, which runs at half of the speed there, and threads wait in the way that suits the load.
"""

import functools
from typing import Any

import torch

from cpc.native.waiting import watch_cores

_products: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]


def prepare_processor() -> None:
    """Flush denormals, choose the library of float32 products, watch the cores; call it before the first product."""
    watch_cores()
    torch.set_flush_denormal(True)
    if has_slow_float32_products() and onednn_products_are_exact():
        _products.fp32_precision = "bf16"


def has_slow_float32_products() -> bool:
    """Whether torch multiplies float32 matrices with MKL on an AMD processor."""
    return torch.backends.mkl.is_available() and "AMD" in str(torch.cpu.get_capabilities().get("cpu_name", ""))


@functools.cache
def onednn_products_are_exact() -> bool:
    """Whether float32 stays float32 on oneDNN's path here.

    torch takes that path only where bfloat16 inside the product is allowed. A processor without matrix units for
    bfloat16 (AMX) computes in float32 all the same, which this product of numbers that bfloat16 cannot hold shows.
    """
    if not torch.backends.mkldnn.is_available():
        return False
    generator = torch.Generator().manual_seed(0)
    a, b = torch.rand(512, 256, generator=generator), torch.rand(256, 512, generator=generator)
    before = _products.fp32_precision
    _products.fp32_precision = "bf16"
    try:
        product = a @ b
    finally:
        _products.fp32_precision = before
    error = (product - a.double() @ b.double()).abs().max() / product.max()
    return bool(error < 1e-6)  # operands rounded to bfloat16 err by 1e-4
