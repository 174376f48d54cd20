"""Which precision the quickstart trains in, on a clock that only training steps move."""

import time
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from cpc.data.batch import Batch
from cpc.quickstart import time_budget
from cpc.quickstart.time_budget import BFLOAT16, FLOAT32, Precision, measure_step_times


@pytest.mark.parametrize(
    ("step_seconds", "fastest", "num_steps"),
    [
        ({"bf16": 0.55, "float32": 0.37}, FLOAT32, 850),  # has avx512_bf16, and is slower in it
        ({"bf16": 0.2, "float32": 0.32}, BFLOAT16, 1600),
        ({"bf16": 30.0, "float32": 5.0}, FLOAT32, 300),  # a step beyond what each is timed for
    ],
)
@pytest.mark.parametrize("has_flag", [True, False])
def test_the_faster_precision_is_taken_whatever_the_flags_say(
    step_seconds: dict[str, float], fastest: Precision, num_steps: int, has_flag: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds, spent = [0.0], {"bf16": [], "float32": []}  # type: ignore[var-annotated]

    class Model(nn.Module):
        def __init__(self, compute: str) -> None:
            super().__init__()
            self.weight, self.compute = nn.Parameter(torch.zeros(3)), compute

        def loss(self, batch: Batch) -> SimpleNamespace:
            assert torch.is_autocast_enabled("cpu") == (self.compute == "bf16")
            assert batch.x.shape == (2, 3)
            spent[self.compute].append(step_seconds[self.compute] + 9 * (not spent[self.compute]))  # the first compiles
            seconds[0] += spent[self.compute][-1]
            return SimpleNamespace(loss=(batch.x @ self.weight).sum())

    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": has_flag})
    monkeypatch.setattr(time, "perf_counter", lambda: seconds[0])
    batch = Batch.of(torch.randn(2, 3))
    before = torch.get_rng_state()
    step_times = measure_step_times(lambda precision: Model(precision.loss), batch)
    assert torch.equal(torch.get_rng_state(), before)
    assert step_times.precision is fastest
    assert step_times.num_steps(320.0) == num_steps
    assert step_times.num_steps(320.0, most=400) == min(num_steps, 400)
    found = {"bf16-mixed": step_seconds["bf16"], "32-true": step_seconds["float32"]}
    assert step_times.record() == {"precision": fastest.trainer, "step_seconds": pytest.approx(found)}
    assert str(step_times).startswith(f"{fastest.trainer} (a step takes {found['bf16-mixed']:.3g} s in bf16-mixed, ")
    for of_precision in spent.values():  # two seconds each, and at most a step more
        assert 2 <= sum(of_precision[1:]) < 2 + of_precision[-1] + 1e-9


def test_one_precision_alone_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_budget, "MEASURING_SECONDS", 1e-9)
    asked = []

    def model_of(precision: Precision) -> nn.Module:
        asked.append(precision)
        model = nn.Linear(3, 1)
        model.loss = lambda batch: SimpleNamespace(loss=model(batch.x).sum())  # type: ignore[assignment]
        return model

    step_times = time_budget.measure_step_times(model_of, Batch.of(torch.randn(2, 3)), (FLOAT32,))
    assert asked == [FLOAT32]
    assert step_times.precision is FLOAT32
    assert set(step_times.seconds) == {FLOAT32}
