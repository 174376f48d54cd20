"""The GPU's kernel on the CPU, in Triton's interpreter, against the torch code it stands for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cpc.losses import contrast, slopes

kernel = pytest.importorskip("cpc.losses.triton_slopes", reason="needs Triton")


@pytest.mark.parametrize("with_pool", [False, True])
@pytest.mark.parametrize("num_columns", [7, 300])
def test_the_kernel_equals_the_torch_code(with_pool: bool, num_columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "_BLOCK", 64)  # several blocks a row
    generator = torch.Generator().manual_seed(0)
    num_rows = 9
    scores = 5 * torch.randn(num_rows, num_columns, generator=generator)
    positive = torch.randint(num_columns, (num_rows,), generator=generator)
    scores[0] = 1.5  # all tied
    scores[1, positive[1]], scores[2, positive[2]] = 1e4, -1e4
    scores[3, : num_columns // 2] = scores[3, positive[3]]
    pool = torch.rand(3, num_columns, generator=generator) < 0.6 if with_pool else None
    sequence = torch.randint(3, (num_rows,), generator=generator)
    expected = slopes.against_all(scores.clone(), positive, pool, sequence)
    found = kernel.against_all(scores.clone(), positive, pool, sequence)
    for name, mine, wanted in zip(("loss", "accuracy", "slopes"), found, expected, strict=True):
        torch.testing.assert_close(mine, wanted, msg=lambda text, name=name: f"{name}: {text}")


def test_the_kernel_compiles_for_a_gpu(tmp_path: Path) -> None:
    """Down to machine code, which needs no GPU: the interpreter accepts more than the compiler does."""
    code = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from cpc.losses.triton_slopes import _against_all

kinds = "*fp32 *i64 *u8 *i64 *fp32 *fp32 i32 i32 fp32 fp32 constexpr constexpr".split()
signature = dict(zip(_against_all.arg_names, kinds, strict=True))
source = ASTSource(_against_all, signature, {"has_pool": True, "block": 1024})
print(len(triton.compile(source, target=GPUTarget("cuda", 80, 32)).asm["cubin"]))
"""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert int(found.stdout) > 0


def test_a_whole_loss_through_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(2, 3, 5, 4, generator=generator, requires_grad=True)
    latents = torch.randn(3, 5, 4, generator=generator, requires_grad=True)
    options = {"strategy": "mixed_excluding", "num_valid": torch.tensor([5, 4, 5])}

    def outcome() -> list[torch.Tensor]:
        result = contrast(queries, latents, **options)
        return [result.loss_nats, result.accuracy, *torch.autograd.grad(result.loss, (queries, latents))]

    expected = outcome()
    monkeypatch.setattr(slopes, "KERNEL", "triton")
    for mine, wanted in zip(outcome(), expected, strict=True):
        torch.testing.assert_close(mine, wanted)
