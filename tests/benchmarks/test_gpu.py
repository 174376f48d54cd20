"""The one command for an hour with a GPU, on the CPU: nothing that fails takes the rest along."""

import math
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch

from benchmarks import gpu, gpu_rivals
from benchmarks.reference import materialised_info_nce

ON = gpu.Device("cpu")


@pytest.mark.usefixtures("unchecked_types")
def test_every_loss_is_checked_in_every_precision() -> None:
    rows = gpu.checks(ON)
    assert [row for row in rows if not row["passes"]] == []
    assert len({row["loss"] for row in rows}) == 10 + 7 + 2
    for row in rows:
        assert (row["of_gradients"] > 1e-4) == (row["precision"] == "bf16"), row


def test_a_loss_that_is_wrong_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def losses() -> Iterator[tuple[str, Callable[..., torch.Tensor], bool]]:
        yield "other value", lambda queries, *_: (queries**2).mean() + (queries.dtype == torch.float32), False
        yield (
            "other gradients",
            lambda queries, *_: queries.abs().sum() ** (1 + 1e-4 * (queries.dtype == torch.float32)),
            False,
        )
        yield "broken", lambda *_: 1 / 0, False

    monkeypatch.setattr(gpu, "losses", losses)
    rows = gpu.checks(ON)
    assert [row["passes"] for row in rows] == [False] * 6
    assert rows[-1]["error"] == "ZeroDivisionError: division by zero"


@pytest.mark.usefixtures("unchecked_types")
def test_a_contender_that_fails_or_takes_too_long_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    def foreign() -> Iterator[tuple[str, Callable[..., torch.Tensor]]]:
        yield "broken", lambda *_: 1 / 0
        yield "slow", lambda *_: time.sleep(60)
        yield "late", materialised_info_nce

    monkeypatch.setattr(gpu, "foreign", foreign)
    monkeypatch.setattr(ON, "until", time.monotonic() + 3)
    rows = gpu.loss_times(ON, (256,))
    errors = {row["way"]: row["error"] for row in rows if "error" in row}
    assert errors["broken"].startswith("ZeroDivisionError")
    assert errors["slow"] == errors["late"] == "its part's time was over"
    measured = [row for row in rows if "error" not in row]
    assert len(measured) == 2 * (2 * len(gpu.TILES) + 1)
    assert all(row["seconds"] > 0 for row in measured)


def test_rivals_compute_our_loss_or_say_that_it_is_another(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stand-ins compute densely what memeff 0.3.1 and siglip-kernel 0.1.2 document; the others are not installed."""
    calls = []

    class Qwen3:
        def __init__(self, temperature: float, margin: float, normalized_inputs: bool, stable: bool) -> None:
            assert normalized_inputs
            assert not stable
            self.temperature, self.margin = temperature, margin

        def __call__(self, queries: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
            assert torch.allclose(queries.norm(dim=1), torch.ones(len(queries)))
            cosines = queries @ documents.T
            is_kept = cosines <= cosines.diagonal()[:, None] + self.margin
            scores = (cosines / self.temperature).masked_fill(~is_kept, -torch.inf)
            return -scores.log_softmax(1).diagonal().mean()

    def siglip(images: torch.Tensor, texts: torch.Tensor, log_temp: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        calls.append(images.dtype)
        logits = (images @ texts.T).float() * log_temp.exp() + bias
        return -torch.nn.functional.logsigmoid((2 * torch.eye(len(images)) - 1) * logits).sum() / len(images)

    def installed(name: str) -> SimpleNamespace:
        modules = {
            "memeff": SimpleNamespace(MemoryEfficientQwen3Loss=Qwen3),
            "siglip_kernel": SimpleNamespace(fused_siglip_loss=siglip),
        }
        if name not in modules:
            raise ModuleNotFoundError(name)
        return modules[name]

    monkeypatch.setattr(gpu_rivals, "import_module", installed)
    size, positives = 24, torch.arange(24)
    queries, candidates = (torch.nn.functional.normalize(torch.randn(size, 16), dim=1) for _ in range(2))
    queries = gpu_rivals.QUERY_NORM * queries
    values = {name: way(queries, candidates, positives) for name, way in gpu.foreign()}
    assert list(values) == ["memeff", *(f"siglip-kernel, {t}: another loss (sigmoid)" for t in ("float32", "bfloat16"))]
    expected = materialised_info_nce(queries.double(), candidates.double(), positives)
    assert values["memeff"].item() == pytest.approx(expected.item(), rel=1e-5)
    assert calls == [torch.float32, torch.bfloat16]
    pairs = [
        math.log1p(math.exp((1 if i != j else -1) * (float(queries[i] @ candidates[j]) - 10)))
        for i in range(size)
        for j in range(size)
    ]
    sigmoid, rounded = list(values.values())[1:]
    assert sigmoid.item() == pytest.approx(sum(pairs) / size, rel=1e-4)
    assert rounded.item() == pytest.approx(sum(pairs) / size, rel=1e-2)
    printed = capsys.readouterr().out
    assert "Inf-CL: ModuleNotFoundError" in printed
    assert "Liger: ModuleNotFoundError" in printed
