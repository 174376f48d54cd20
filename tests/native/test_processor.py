import subprocess
import sys

import pytest
import torch

from cpc.native.processor import has_slow_float32_products, onednn_products_are_exact

PRODUCT = """
import torch
from cpc.native.processor import prepare_processor
prepare_processor()
generator = torch.Generator().manual_seed(1)
a, b = torch.rand(1024, 256, generator=generator), torch.rand(256, 640, generator=generator)
print(float((a @ b - a.double() @ b.double()).abs().max() / (a @ b).max()))
print(float(torch.tensor(1e-30) * torch.tensor(1e-10)))
"""


def test_prepared_products_are_float32_and_denormals_zero() -> None:
    """In a process of its own: both settings hold for the whole of it."""
    done = subprocess.run([sys.executable, "-c", PRODUCT], capture_output=True, text=True, check=True)
    error, denormal = (float(line) for line in done.stdout.split())
    assert error < 1e-6  # operands rounded to bfloat16 err by more than 1e-5
    assert denormal == 0.0


def test_rounding_inside_products_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor with AMX rounds on oneDNN's path: here a product that rounds stands in for it."""
    product = torch.Tensor.__matmul__

    def rounding(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return product(a.bfloat16().float(), b.bfloat16().float()) if a.dtype == torch.float32 else product(a, b)

    monkeypatch.setattr(torch.Tensor, "__matmul__", rounding)
    assert not onednn_products_are_exact.__wrapped__()


def test_the_check_leaves_the_precision_as_it_was_and_only_mkl_on_amd_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.backends.mkldnn.matmul.fp32_precision
    onednn_products_are_exact.__wrapped__()
    assert torch.backends.mkldnn.matmul.fp32_precision == before
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"cpu_name": "Intel(R) Xeon(R)"})
    assert not has_slow_float32_products()
