import pytest
import torch

from cpc.native.processor import has_slow_float32_products, onednn_products_are_exact, prepare_processor


def test_prepared_products_are_float32_and_denormals_zero(generator: torch.Generator) -> None:
    prepare_processor()
    a, b = torch.rand(1024, 256, generator=generator), torch.rand(256, 640, generator=generator)
    product = a @ b
    assert (product - a.double() @ b.double()).abs().max() / product.max() < 1e-6  # in bfloat16 more than 1e-5
    assert float(torch.tensor(1e-30) * torch.tensor(1e-10)) == 0


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
