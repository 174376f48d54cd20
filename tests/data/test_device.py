"""Which device a name stands for. No test needs a GPU: torch's answers about it are replaced."""

import pytest
import torch
from refusals import refuses

from cpc.data.batch import Batch
from cpc.data.store.contents import _say_once
from cpc.data.tensors import find_device


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A GPU as torch describes it; the list of the devices on which memory was asked for."""
    asked: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"card of {device}")
    monkeypatch.setattr(torch, "empty", lambda size, device: asked.append(device))
    _say_once.cache_clear()  # another test may have said the same
    return asked


@pytest.mark.parametrize(
    ("name", "device", "said"),
    [
        ("auto", "cuda", "computing on cuda (card of cuda)\n"),
        ("cuda", "cuda", "computing on cuda (card of cuda)\n"),
        ("cuda:1", "cuda:1", "computing on cuda:1 (card of cuda:1)\n"),
        ("cpu", "cpu", ""),
    ],
)
def test_with_a_gpu(name: str, device: str, said: str, gpu: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert find_device(name) == find_device(name) == device
    assert gpu == [device, device]
    assert capsys.readouterr() == ("", said)


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_device("auto") == find_device("cpu") == "cpu"
    assert capsys.readouterr() == ("", "")


def test_a_gpu_that_is_there_and_cannot_be_used_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be busy, or its driver too old; the work does not go to the CPU in silence."""

    def refuse(size: int, device: str) -> None:
        raise RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be ...")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "empty", refuse)
    refuses(r"^`device`=auto cannot be used: CUDA error: out of memory; `cpc doctor`", find_device, "auto")


@pytest.mark.parametrize("name", ["", "gpu", "mps", "cuda:", "cuda:-1", "cpu:0", " cuda", "cuda\n"])
def test_other_names_are_refused(name: str) -> None:
    refuses("must be auto, cpu, cuda or cuda:N", find_device, name)


def test_a_batch_keeps_on_the_host_what_the_host_reads() -> None:
    """On `meta`, which has no values, the loss could not be planned."""
    x = torch.zeros(2, 8)
    batch = Batch(x, torch.tensor([8, 5]), torch.arange(2), torch.zeros(2), torch.zeros(2, 3), x + 1, x > 0)
    moved = batch.beside(torch.zeros(1, device="meta", dtype=torch.float64))
    assert (moved.x.device.type, moved.x.dtype) == ("meta", torch.float64)
    assert (moved.target.device.type, moved.target.dtype) == ("meta", torch.float64)
    assert all(field is kept for field, kept in zip(moved[1:5], batch[1:5], strict=True))
    assert moved.is_known is batch.is_known
