"""Settings of this process that make a CPU faster.

There are four settings. One is that of the allocator (`cpc.native.allocator`). Denormal numbers become zeros. On AMD
processors float32 matrix products use oneDNN, which is twice as fast as MKL there. Threads spin or sleep while they
wait, depending on the load of the machine.
"""

import functools
from typing import Any

import torch

from cpc.native.waiting import watch_cores

_matmul: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]


def prepare_processor() -> None:
    """Make all settings; call this function before the first matrix product."""
    watch_cores()
    torch.set_flush_denormal(True)
    if has_slow_float32_products() and onednn_products_are_exact():
        _matmul.fp32_precision = "bf16"


def has_slow_float32_products() -> bool:
    """Return whether torch multiplies float32 matrices with MKL on an AMD processor."""
    return torch.backends.mkl.is_available() and "AMD" in str(torch.cpu.get_capabilities().get("cpu_name", ""))


@functools.cache
def onednn_products_are_exact() -> bool:
    """Return whether oneDNN multiplies float32 matrices in float32 on this processor.

    torch uses oneDNN only if bfloat16 is allowed inside the product. A processor without matrix units for bfloat16
    (AMX) still computes in float32. This function tests it by a product of numbers that bfloat16 cannot represent.
    """
    if not torch.backends.mkldnn.is_available():
        return False
    generator = torch.Generator().manual_seed(0)
    a, b = torch.rand(512, 256, generator=generator), torch.rand(256, 512, generator=generator)
    before = _matmul.fp32_precision
    _matmul.fp32_precision = "bf16"
    try:
        product = a @ b
    finally:
        _matmul.fp32_precision = before
    error = (product - a.double() @ b.double()).abs().max() / product.max()
    return bool(error < 1e-6)  # with rounding to bfloat16 the error would be 1e-4
