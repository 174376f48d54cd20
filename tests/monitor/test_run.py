"""A run's records in memory: equal to the lines, whatever happens to the files in between."""

import json
import math
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("orjson", reason="the extra 'dashboard' is not installed")

from benchmarks.synthetic_runs import add_step, bound_record, health_record, probe_record, write_run
from cpc.data.store.atomic import append_record, read_records
from cpc.monitor import run as run_module
from cpc.monitor.record_types import BOUND, EVENT, HEALTH, PROBE
from cpc.monitor.run import Run
from cpc.monitor.table import FIELDS_BY_STEP


def opened(folder: Path) -> Run:
    run = Run(folder, folder.name)
    refreshed(run)
    return run


def opened_with(tmp_path: Path, *records: dict[str, Any]) -> Run:
    (tmp_path / "run").mkdir()
    for record in records:
        append_record(tmp_path / "run" / "bound.jsonl", record)
    return opened(tmp_path / "run")


def refreshed(run: Run) -> None:
    while run.refresh():
        pass


def assert_holds_what_the_files_say(run: Run) -> None:
    lines: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for record in read_records(run.folder / "bound.jsonl"):
        lines.setdefault((record["split"], record["strategy"]), []).append(record)
    assert {table.key.names for table in run.tables(BOUND)} == set(lines)
    for table in run.tables(BOUND):
        records = lines[table.key.names]
        assert table.means["step"].tolist() == [record["step"] for record in records]
        for name in BOUND.numbers:
            expected = np.array([record[name] for record in records], np.float64)
            if name in FIELDS_BY_STEP:
                np.testing.assert_allclose(table.by_step[name], expected, rtol=1e-6)
            np.testing.assert_allclose(table.means[name], expected.mean(1), rtol=1e-6)


def test_tables_hold_every_record(tmp_path: Path) -> None:
    run = opened(write_run(tmp_path / "run"))
    assert_holds_what_the_files_say(run)
    health = [json.loads(line) for line in (tmp_path / "run/health.jsonl").read_text().splitlines()]
    (table,) = run.tables(HEALTH)
    assert table.means["time_unix_seconds"].tolist() == [record["time_unix_seconds"] for record in health]  # float64
    (table,) = run.tables(PROBE)
    assert table.key.names == ("phones", "c")
    assert len(table.means["step"]) == 4
    (table,) = run.tables(EVENT)
    assert table.last == {"event": "started", "message": ""}


def test_a_deleted_run_keeps_its_records_and_one_made_anew_is_another(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    run = opened(folder)
    before = run.tables(BOUND)[0].by_step["mi_bound_nats"]
    shutil.rmtree(folder)
    assert run.refresh()
    assert not run.refresh()
    assert run.is_deleted
    assert run.tables(BOUND)[0].by_step["mi_bound_nats"].tolist() == before.tolist()
    write_run(folder, num_records=10, level=3.0)
    refreshed(run)
    assert not run.is_deleted
    assert_holds_what_the_files_say(run)


def test_monitors_of_the_same_run_write_nothing_into_it(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    monitors = [opened(folder), opened(folder)]
    for number, step in enumerate((5000, 5050, 5100, 5150)):
        add_step(folder, step)
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        for run in (monitors[number % 2], monitors[1 - number % 2]):  # by turns
            assert run.refresh()
            assert not run.refresh()
            assert_holds_what_the_files_say(run)
            assert run.tables(BOUND)[0].means["step"].size == 41 + number
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    (folder / "bound.jsonl").write_text(json.dumps(bound_record(50)) + "\n")  # as a resumed run may
    for run in monitors:
        refreshed(run)
        assert_holds_what_the_files_say(run)


def test_lines_whose_reading_failed_are_read_by_the_next_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = opened(write_run(tmp_path / "run"))
    add_step(run.folder, 5000)
    with monkeypatch.context() as patched:
        patched.setattr(run_module, "parse_lines", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run.refresh()
    refreshed(run)
    assert_holds_what_the_files_say(run)


def test_broken_lines_are_counted_and_the_rest_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    good = [json.dumps(bound_record(step)) for step in (50, 100)]
    broken = [
        '{"step": 70, "mi',
        "[1, 2]",
        '{"step": null, "split": "train", "strategy": "mixed", "mi_bound_nats": []}',
        '{"step": 1, "split": "train", "strategy": "mixed", "mi_bound_nats": []}',
        '{"step": 1, "split": "train", "strategy": "mixed", "mi_bound_nats": [1, 2], "steps": [3, 3]}',
        '{"step": 1, "split": "train", "strategy": "mixed", "mi_bound_nats": [1, 2], "steps": ["a", "b"]}',
        f'{{"step": 1{"0" * 400}, "split": "train", "strategy": "mixed", "mi_bound_nats": [1]}}',
        "[" * 100_000,
        '{"step": NaN, "split": "train", "strategy": "mixed", "mi_bound_nats": [1]}',
    ]
    (folder / "bound.jsonl").write_text("\n".join([good[0], *broken, good[1]]) + "\n" + '{"torn')
    run = opened(folder)
    (table,) = run.tables(BOUND)
    assert table.means["step"].tolist() == [50, 100]
    file = run.files["bound.jsonl"]
    assert file.num_problems == 9
    assert [problem.split(":")[0] for problem in file.problems] == [f"bound.jsonl, line {n}" for n in range(2, 7)]


def test_records_without_steps_are_those_of_k_from_one(tmp_path: Path) -> None:
    old = bound_record(50)
    for name in ("steps", "directions", "num_rows", "reading", "saturated", "biased"):
        del old[name]
    (table,) = opened_with(tmp_path, old, bound_record(100)).tables(BOUND)
    assert table.key.steps == (1, 2, 3, 4)
    assert table.by_step["mi_bound_nats"].shape == (2, 4)
    assert np.isfinite(table.means["mi_bound_nats"]).all()


def test_a_newer_schema_is_read_as_far_as_it_is_known(tmp_path: Path) -> None:
    newer = bound_record(100, schema=7, critics=[{"name": "b"}], accuracy={"top1": 0.5})
    run = opened_with(tmp_path, bound_record(50), newer)
    (table,) = run.tables(BOUND)
    assert table.means["step"].tolist() == [50, 100]
    assert np.isnan(table.means["accuracy"][1])
    assert np.isfinite(table.by_step["mi_bound_nats"]).all()
    assert "bound.jsonl has schema 7, but this cpc reads up to 1" in run.notes[0]


def test_grids_have_directions_and_a_change_of_steps_begins_another_table(tmp_path: Path) -> None:
    grid = {"steps": [2, 3, 2, 3], "directions": ["down", "down", "up", "up"]}
    run = opened_with(tmp_path, bound_record(50), bound_record(100, **grid))
    assert [table.key.step_labels for table in run.tables(BOUND)] == [
        ["k = 1", "k = 2", "k = 3", "k = 4"],
        ["down, k = 2", "down, k = 3", "up, k = 2", "up, k = 3"],
    ]


def test_what_is_not_finite_is_no_mean_but_what_has_no_rows_is_left_out(tmp_path: Path) -> None:
    values = [1.0, 2.0, 3.0, None]
    run = opened_with(
        tmp_path,
        bound_record(1, mi_bound_nats=values, num_rows=[5, 5, 5, 0]),
        bound_record(2, mi_bound_nats=values, num_rows=[5, 5, 5, 5]),
        bound_record(3, mi_bound_nats=[1.0, 2.0, 3.0, math.nan]),
    )
    means = run.tables(BOUND)[0].means["mi_bound_nats"]
    assert means[0] == 2
    assert np.isnan(means[1:]).all()


def test_options_come_flat_and_follow_the_file(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    config = folder / "config.yaml"
    config.write_text("model: {encoder: {class_path: cpc.A, init_args: {dim: 8}}, extra: null}\nseed: [1]\n")
    run = opened(folder)
    assert run.config() == {"model.encoder": "cpc.A", "model.encoder.dim": "8", "model.extra": "null", "seed": "[1]"}
    config.write_text("seed: 3\n")
    os.utime(config, ns=(time.time_ns(), time.time_ns() + 10**9))
    assert run.config() == {"seed": "3"}
    config.write_text("a: [")
    os.utime(config, ns=(time.time_ns(), time.time_ns() + 2 * 10**9))
    assert "cannot be read" in run.config()["config.yaml"]
    config.unlink()
    assert run.config() == {}


@pytest.mark.slow
def test_a_million_records(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    before, after = json.dumps(bound_record(0, num_steps=1)).split('"step": 0', 1)
    with (folder / "bound.jsonl").open("w") as file:
        file.writelines(f'{before}"step": {step}{after}\n' for step in range(10**6))
    add_step(folder, 10**6, num_steps=1)
    append_record(folder / "probe.jsonl", probe_record(10**6))
    append_record(folder / "health.jsonl", health_record(10**6 + 1))
    run = opened(folder)
    (table,) = run.tables(BOUND)
    assert np.array_equal(table.means["step"], np.arange(10**6 + 1))
    assert table.by_step["mi_bound_nats"].shape == (10**6 + 1, 1)
