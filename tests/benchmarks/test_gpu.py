"""The one command for an hour with a GPU, on the CPU: nothing that fails takes the rest along."""

import time
from collections.abc import Callable, Iterator

import pytest
import torch

from benchmarks import gpu
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
