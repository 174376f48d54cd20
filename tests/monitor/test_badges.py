"""Each badge where it belongs, and nowhere else."""

import json
import math
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("orjson", reason="the extra 'dashboard' is not installed")

from benchmarks.synthetic_runs import NUM_CANDIDATES, bound_record, event_record, health_record
from cpc.data.store.atomic import append_record
from cpc.monitor.badges import badges, seconds_since_write
from cpc.monitor.run import Run

NOW = time.time()


def found(
    folder: Path, bounds: Iterable[dict[str, Any]] = (), after_seconds: float = 0, **files: Any
) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    (folder / "bound.jsonl").write_text("".join(json.dumps(record) + "\n" for record in bounds))
    for name, records in files.items():
        for record in records:
            append_record(folder / f"{name}.jsonl", record)
    run = Run(folder, "run")
    run.refresh()
    return dict(badges(run, time.monotonic() + after_seconds))


def rising(num: int = 20) -> list[dict[str, Any]]:
    return [bound_record(step) for step in range(50, 50 * num + 1, 50)]


def test_a_run_that_learns_has_none(tmp_path: Path) -> None:
    healths = [health_record(step) for step in (50, 100)]
    assert found(tmp_path / "run", rising(), health=healths, events=[event_record("started")]) == {}


def test_saturated_biased_and_collapsed_are_what_the_record_says(tmp_path: Path) -> None:
    flags = {"saturated": [True, False, False, False], "biased": [False, True, True, False]}
    named = found(tmp_path / "run", [bound_record(50, **flags)], health=[health_record(50, collapsed=["z", "c"])])
    assert "train mixed at k = 1:" in named["saturated"]
    assert "train mixed at k = 2, k = 3:" in named["biased"]
    assert named["collapsed"].startswith("z and c:")


@pytest.mark.parametrize(("num_records", "is_stalled"), [(20, False), (200, True)])
def test_stalled_is_a_flat_end_of_a_long_curve(tmp_path: Path, num_records: int, is_stalled: bool) -> None:
    rng = np.random.default_rng(0)
    flat = [bound_record(step, level=1 + 0.01 * rng.standard_normal()) for step in range(5000, 5000 + num_records)]
    assert ("stalled" in found(tmp_path / "run", flat)) == is_stalled


def test_a_slow_rise_in_noise_is_no_standstill_and_saturation_neither(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    slow = [bound_record(10**5 + i, level=1 + 0.005 * i + 0.05 * rng.standard_normal()) for i in range(200)]
    assert "stalled" not in found(tmp_path / "slow", slow)
    full = [bound_record(10**5 + i, level=math.log(NUM_CANDIDATES), num_steps=1) for i in range(200)]
    named = found(tmp_path / "full", full)
    assert "saturated" in named
    assert "stalled" not in named


def test_nan_by_record_by_gradient_and_by_event(tmp_path: Path) -> None:
    broken = bound_record(50, loss_nats=[None, 1.0, 1.0, math.nan])
    assert "not finite at k = 1, k = 4" in found(tmp_path / "a", [broken])["NaN"]
    empty = bound_record(50, loss_nats=[None, 1.0, 1.0, 1.0], num_rows=[0, 9, 9, 9])
    assert "NaN" not in found(tmp_path / "b", [empty])
    assert "gradient" in found(tmp_path / "c", rising(), health=[health_record(50, gradient_norm=None)])["NaN"]
    assert "NaN" not in found(tmp_path / "e", rising(), health=[health_record(50, gradient_norm=1e39)])  # of float64
    events = [event_record("started"), event_record("not_finite", 70, "the loss is nan at training step 70")]
    assert found(tmp_path / "d", rising(), events=events) == {"NaN": "the loss is nan at training step 70"}


@pytest.mark.parametrize("ending", ["finished", "interrupted", "failed"])
def test_how_it_ended_and_what_has_ended_is_not_stale(tmp_path: Path, ending: str) -> None:
    events = [event_record("started"), event_record(ending, 100, "no reason")]
    assert list(found(tmp_path / "run", rising(), events=events, after_seconds=10**6)) == [ending]


def test_stale_after_two_minutes_or_five_intervals(tmp_path: Path) -> None:
    fast = [health_record(step, time_unix_seconds=NOW + step) for step in (0, 1, 2)]
    assert "stale" not in found(tmp_path / "a", rising(), health=fast, after_seconds=100)
    assert "no record for 3 min, and no record of an end" in found(tmp_path / "a", rising(), after_seconds=181)["stale"]
    slow = [health_record(step, time_unix_seconds=NOW + step) for step in (0, 100, 200)]
    assert "stale" not in found(tmp_path / "b", rising(), health=slow, after_seconds=400)
    assert "stale" in found(tmp_path / "b", rising(), after_seconds=600)
    resumed = [event_record("failed"), event_record("resumed")]
    assert list(found(tmp_path / "c", rising(), events=resumed, after_seconds=10**6)) == ["stale"]
    first = [health_record(50)]  # ten minutes, if the pace is not known
    assert "stale" not in found(tmp_path / "d", rising(1), health=first, after_seconds=590)
    assert "its usual interval is not known yet" in found(tmp_path / "d", rising(1), after_seconds=610)["stale"]


def test_another_clock_makes_no_run_stale(tmp_path: Path) -> None:
    """Of a run that is written to from a machine an hour behind."""
    folder = tmp_path / "run"
    folder.mkdir()
    for skew in (-3600, 3600):
        run = Run(folder, "run")
        for step in (50, 100):
            append_record(folder / "health.jsonl", health_record(step, time_unix_seconds=NOW + skew))
            os.utime(folder / "health.jsonl", (NOW + skew + step, NOW + skew + step))
            run.refresh()
        assert "stale" not in dict(badges(run, time.monotonic()))
        assert seconds_since_write(run, time.monotonic() + 30) == pytest.approx(30, abs=5)


def test_what_was_written_long_ago_is_stale_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    append_record(folder / "bound.jsonl", bound_record(50))
    os.utime(folder / "bound.jsonl", (NOW - 86_400 * 3, NOW - 86_400 * 3))
    run = Run(folder, "run")
    run.refresh()
    ((_, reason),) = badges(run, time.monotonic())
    assert "no record for 3 d" in reason


def test_records_of_older_versions_and_former_strategies_change_no_badge(tmp_path: Path) -> None:
    key = {"split": "valid", "check": "shuffled", "estimator": "info_nce", "num_negatives": None}
    line = {"schema": 1, "step": 70, "verdict": ["failed"], "labels": ["k = 1"]} | key
    assert found(tmp_path / "run", rising(), self_checks=[line], events=[event_record("started")]) == {}
    full = bound_record(50, strategy="sequence_only", saturated=[True] * 4, loss_nats=[None] * 4)
    assert found(tmp_path / "run", [full, bound_record(100)]) == {}
