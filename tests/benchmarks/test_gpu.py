"""The one command for minutes with a GPU, on the CPU: nothing that fails takes the rest along."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import checks, loss
from benchmarks.gpu import step as step_module
from benchmarks.gpu.device import Device
from benchmarks.gpu.step import NUM_WARM_UPS, TrainingStep
from cpc.contexts import GRU, LSTM

ON = Device("cpu")


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked_types")
def test_parts_run_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "gpu.json"
    command.main(["--device", "cpu", "--quick", "--parts", "step", "loss", "train", "drawn", "--out", str(out)])
    printed = capsys.readouterr().out.splitlines()
    figures, found = json.loads(printed[-1]), json.loads(out.read_text())
    for part, figure in (
        ("step", "windows_per_second"),
        ("loss", "ms"),
        ("train", "windows_per_second"),
        ("drawn", "ms"),
    ):
        assert figures[f"{part}_errors"] == 0
        assert figures[part] == {row["name"]: pytest.approx(row[figure], rel=1e-3) for row in found[part]}
        assert all(value > 0 for value in figures[part].values())
    assert {row["name"] for row in found["step"]} > {
        "2 windows, GRU, all, bf16, eager",
        "2 windows, LSTM, 128, bf16, reference style",
    }
    assert {row["name"] for row in found["loss"]} > {"512, bf16, ours", "256, float32, materialised"}
    # All candidates are one among 256, the reference's negatives are 128: the losses begin near log N.
    assert all(row["loss"] < 6 for row in found["step"])


@pytest.mark.usefixtures("unchecked_types")
def test_recurrences_and_step_graphs_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_module, "StepGraphs", lambda compute, *_: compute)
    monkeypatch.setattr(step_module, "NUM_WARM_UPS", 0)
    assert step_module._recurrence(ON, 2, LSTM, "operator")["ms"] > 0
    assert 0 < step_module._replayed(ON, 2, GRU)["loss"] < 6


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("num_negatives", [None, 128])
def test_a_graph_takes_the_steps_of_eager_mode(num_negatives: int | None) -> None:
    """Draws of a replay are not those of the replay before."""
    step, other = (TrainingStep(Device("cuda"), 2, "float32", GRU, num_negatives) for _ in range(2))
    eager = [float(step()) for _ in range(NUM_WARM_UPS + 3)][NUM_WARM_UPS:]
    replay = other.captured()
    replayed = [float(replay()) for _ in range(3)]
    assert len(set(replayed)) == 3
    assert replayed == pytest.approx(eager, rel=0.05 if num_negatives else 1e-3)


@pytest.mark.usefixtures("unchecked_types")
def test_every_loss_is_checked_in_every_precision() -> None:
    rows = checks.check_rows(ON, is_quick=True)
    assert [row for row in rows if not row["passes"]] == []
    assert len({row["name"].rpartition(", ")[0] for row in rows}) == 10 + 7 + 2
    for row in rows:
        assert (row["error_of_gradients"] > 1e-4) == row["name"].endswith("bf16"), row


def test_a_loss_that_is_wrong_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def losses() -> Iterator[tuple[str, Callable[..., torch.Tensor], tuple[str, ...]]]:
        one = ("float32",)
        yield "other value", lambda queries, *_: (queries**2).mean() + (queries.dtype == torch.float32), one
        yield (
            "other gradients",
            lambda queries, *_: queries.abs().sum() ** (1 + 1e-4 * (queries.dtype == torch.float32)),
            one,
        )
        yield "broken", lambda *_: 1 / 0, one

    monkeypatch.setattr(checks, "losses", losses)
    rows = checks.check_rows(ON, is_quick=True)
    assert [row["passes"] for row in rows] == [False] * 3
    assert rows[-1]["error"] == "ZeroDivisionError: division by zero"


@pytest.mark.usefixtures("unchecked_types")
def test_a_contender_that_fails_or_takes_too_long_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    def foreign() -> Iterator[tuple[str, Callable[..., torch.Tensor]]]:
        yield "broken", lambda *_: 1 / 0
        monkeypatch.setattr(ON, "until", time.monotonic() + 1)
        yield "slow", lambda *_: time.sleep(60)

    monkeypatch.setattr(loss, "foreign", foreign)
    errors = {row["name"]: row.get("error") for row in loss.loss_rows(ON, is_quick=True)}
    assert errors["512, bf16, ours"] is None
    assert errors["256, bf16, broken"] == "ZeroDivisionError: division by zero"
    assert errors["256, bf16, slow"] == errors["256, bf16, materialised"] == "TimeoutError: its part's time was over"
