"""A run's records in columns: equal to the lines, whatever happens to files and caches in between."""

import contextlib
import errno
import json
import math
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("orjson", reason="the extra 'dashboard' is not installed")

from benchmarks.made_runs import add_step, bound_record, health_record, probe_record, write_run
from cpc.data.store.records import append_record, read_records
from cpc.monitor.kinds import BOUND, HEALTH, PROBE
from cpc.monitor.run import CACHE_FOLDER, CACHE_FORMAT, Run, index_run
from cpc.monitor.table import Table


def opened(folder: Path) -> Run:
    run = Run(folder, folder.name)
    refreshed(run)
    return run


def refreshed(run: Run) -> None:
    while run.refresh():
        pass


def assert_holds_what_the_files_say(run: Run) -> None:
    """Every whole line of bound.jsonl, in order, in the table of its split and strategy."""
    lines: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for record in read_records(run.folder / "bound.jsonl"):
        lines.setdefault((record["split"], record["strategy"]), []).append(record)
    assert {table.key.names for table in run.tables(BOUND)} == set(lines)
    for table in run.tables(BOUND):
        records = lines[table.key.names]
        assert table.mean("step").tolist() == [record["step"] for record in records]
        for name in BOUND.numbers:
            expected = np.array([record[name] for record in records], np.float64)
            np.testing.assert_allclose(table.column(name), expected, rtol=1e-6)
            np.testing.assert_allclose(table.mean(name), expected.mean(1), rtol=1e-6)


def test_tables_hold_every_record(tmp_path: Path) -> None:
    run = opened(write_run(tmp_path / "run"))
    assert_holds_what_the_files_say(run)
    health = [json.loads(line) for line in (tmp_path / "run/health.jsonl").read_text().splitlines()]
    (table,) = run.tables(HEALTH)
    assert table.mean("time_unix_seconds").tolist() == [record["time_unix_seconds"] for record in health]  # float64
    (table,) = run.tables(PROBE)
    assert table.key.names == ("phones", "c")
    assert table.num_rows == 4
    assert [event["event"] for event in run.events] == ["started"]
    run.close()


def test_new_records_are_added_to_old_ones(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    run = opened(folder)
    assert not run.refresh()
    for step in (2050, 2100):
        add_step(folder, step)
        assert run.refresh()
        assert_holds_what_the_files_say(run)
    run.close()


def test_the_next_monitor_reads_the_index_and_not_the_file(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    index_run(folder)
    run = Run(folder, "run")
    assert run.backlog_bytes == 0
    assert_holds_what_the_files_say(run)
    assert not run.refresh()
    add_step(folder, 5000)
    refreshed(run)
    assert_holds_what_the_files_say(run)
    run.close()


def test_a_kill_between_columns_and_index_leaves_no_half_row(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    index_run(folder)
    for column in (folder / CACHE_FOLDER).glob("columns_*/mi_bound_nats.f4"):
        with column.open("ab") as file:
            file.write(b"123456")
    add_step(folder, 5000)
    run = opened(folder)
    assert_holds_what_the_files_say(run)
    run.close()


@pytest.mark.parametrize("damage", ["{", '{"format": 0}', "[]", f'{{"format": {CACHE_FORMAT}}}'])
def test_a_damaged_index_is_made_anew(tmp_path: Path, damage: str) -> None:
    folder = write_run(tmp_path / "run")
    index_run(folder)
    (folder / CACHE_FOLDER / "index.json").write_text(damage)
    run = opened(folder)
    assert_holds_what_the_files_say(run)
    run.close()


def test_a_column_that_is_too_short_is_made_anew(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    for name in ("mi_bound_nats.f4", "step.mean.f8"):
        index_run(folder)
        for column in (folder / CACHE_FOLDER).glob(f"columns_*/{name}"):
            os.truncate(column, column.stat().st_size - 8)
        run = opened(folder)
        assert_holds_what_the_files_say(run)
        run.close()


def test_columns_removed_under_a_monitor_come_back(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    run = opened(folder)
    shutil.rmtree(folder / CACHE_FOLDER)
    add_step(folder, 5000)
    refreshed(run)
    assert run.cache == folder / CACHE_FOLDER
    assert_holds_what_the_files_say(run)
    run.close()


def test_a_run_made_anew_between_two_looks_is_another(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    run = opened(folder)
    shutil.rmtree(folder)
    write_run(folder, num_records=10, level=3.0)
    refreshed(run)
    assert_holds_what_the_files_say(run)
    run.close()


@pytest.mark.parametrize("is_everything_full", [False, True])
def test_a_full_disk_empties_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_everything_full: bool) -> None:
    folder = write_run(tmp_path / "run")
    run = opened(folder)
    before = run.tables(BOUND)[0].column("mi_bound_nats")
    add_step(folder, 5000)
    real, num_written = Table._write, [0]

    def full(table: Table, name: str, values: np.ndarray) -> None:
        num_written[0] += 1
        if num_written[0] > 3 and (is_everything_full or folder in table.folder.parents):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(table, name, values)

    monkeypatch.setattr(Table, "_write", full)
    if is_everything_full:
        for _ in range(2):  # in the temporary folder, then there as well
            with contextlib.suppress(OSError):
                run.refresh()
        with pytest.raises(OSError, match="No space left"):
            run.refresh()
        assert run.tables(BOUND)[0].column("mi_bound_nats").tolist() == before.tolist()
        monkeypatch.setattr(Table, "_write", real)
    refreshed(run)
    assert_holds_what_the_files_say(run)
    assert run.is_temporary
    assert "No space left on device" in run.where_columns_are
    run.close()
    assert not run.cache.exists()


def test_columns_that_are_gone_are_made_anew(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    index_run(folder)
    for columns in (folder / CACHE_FOLDER).glob("columns_*"):
        shutil.rmtree(columns)
    run = opened(folder)
    assert_holds_what_the_files_say(run)
    run.close()


def test_a_resumed_run_is_read_anew(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    run = opened(folder)
    kept = [record for record in read_records(folder / "bound.jsonl") if record["step"] <= 600]
    (folder / "bound.jsonl").write_text("".join(json.dumps(record) + "\n" for record in kept))
    append_record(folder / "bound.jsonl", bound_record(650, level=9.0))
    refreshed(run)
    assert_holds_what_the_files_say(run)
    assert run.tables(BOUND)[0].mean("step")[-1] == 650
    run.close()


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
    assert table.mean("step").tolist() == [50, 100]
    assert run.num_problems["bound.jsonl"] == 9
    assert [problem.split(":")[0] for problem in run.problems] == [
        f"bound.jsonl, line {number}" for number in (2, 3, 4, 5, 6)
    ]
    run.close()


def test_records_without_steps_are_those_of_k_from_one(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    old = bound_record(50)
    for name in ("steps", "directions", "num_rows", "reading", "saturated", "biased"):
        del old[name]
    append_record(folder / "bound.jsonl", old)
    append_record(folder / "bound.jsonl", bound_record(100))
    run = opened(folder)
    (table,) = run.tables(BOUND)
    assert table.key.steps == (1, 2, 3, 4)
    assert table.column("mi_bound_nats").shape == (2, 4)
    assert np.isnan(table.column("num_rows")[0]).all()
    assert np.isfinite(table.mean("mi_bound_nats")).all()
    run.close()


def test_a_newer_schema_is_read_as_far_as_it_is_known(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    append_record(folder / "bound.jsonl", bound_record(50))
    newer = bound_record(100, schema=7, critics=[{"name": "b"}])
    newer["accuracy"] = {"top1": 0.5}
    append_record(folder / "bound.jsonl", newer)
    run = opened(folder)
    (table,) = run.tables(BOUND)
    assert table.mean("step").tolist() == [50, 100]
    assert np.isnan(table.column("accuracy")[1]).all()
    assert np.isfinite(table.column("mi_bound_nats")).all()
    assert "bound.jsonl has schema 7, known here is 1" in run.notes["bound.jsonl"]
    run.close()


def test_grids_have_directions_and_a_change_of_steps_begins_another_table(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    append_record(folder / "bound.jsonl", bound_record(50))
    grid = {"steps": [2, 3, 2, 3], "directions": ["down", "down", "up", "up"]}
    append_record(folder / "bound.jsonl", bound_record(100, **grid))
    run = opened(folder)
    assert [table.key.step_words for table in run.tables(BOUND)] == [
        ["k = 1", "k = 2", "k = 3", "k = 4"],
        ["down, k = 2", "down, k = 3", "up, k = 2", "up, k = 3"],
    ]
    run.close()


def test_what_is_not_finite_is_no_mean_but_what_has_no_rows_is_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    values = [1.0, 2.0, 3.0, None]
    append_record(folder / "bound.jsonl", bound_record(1, mi_bound_nats=values, num_rows=[5, 5, 5, 0]))
    append_record(folder / "bound.jsonl", bound_record(2, mi_bound_nats=values, num_rows=[5, 5, 5, 5]))
    append_record(folder / "bound.jsonl", bound_record(3, mi_bound_nats=[1.0, 2.0, 3.0, math.nan]))
    run = opened(folder)
    means = run.tables(BOUND)[0].mean("mi_bound_nats")
    assert means[0] == 2
    assert np.isnan(means[1:]).all()
    run.close()


def test_a_deleted_run_keeps_its_means_and_one_made_anew_is_another(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    run = opened(folder)
    before = run.tables(BOUND)[0].mean("mi_bound_nats")
    assert np.isfinite(before).all()
    shutil.rmtree(folder)
    assert run.refresh()
    assert not run.refresh()
    assert run.is_deleted
    (table, *_) = run.tables(BOUND)
    assert np.isnan(table.mean("accuracy")).all()  # nobody had asked before
    assert table.mean("mi_bound_nats").tolist() == before.tolist()
    with pytest.raises(FileNotFoundError):
        table.column("mi_bound_nats")
    write_run(folder, num_records=10, level=3.0)
    refreshed(run)
    assert not run.is_deleted
    assert_holds_what_the_files_say(run)
    run.close()


def test_monitors_share_the_columns_whoever_reads_first(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    monitors = [opened(folder), opened(folder)]
    for number, step in enumerate((5000, 5050, 5100, 5150)):
        add_step(folder, step)
        for run in (monitors[number % 2], monitors[1 - number % 2]):  # by turns
            assert run.refresh()
            assert not run.refresh()
            assert run.cache == folder / CACHE_FOLDER
            assert_holds_what_the_files_say(run)
            assert run.tables(BOUND)[0].num_rows == 41 + number
            assert run.changed_at is not None
    (folder / "bound.jsonl").write_text(json.dumps(bound_record(50)) + "\n")  # as a resumed run may
    for run in monitors:
        refreshed(run)
        assert_holds_what_the_files_say(run)


def test_monitors_that_read_at_the_same_time_add_every_record_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, both = write_run(tmp_path / "run", num_records=3), threading.Barrier(2)
    monitors = [opened(folder), opened(folder)]

    def followed(run: Run) -> None:
        for step in range(200, 1200, 50):
            both.wait()
            if run is monitors[0]:
                add_step(folder, step)
            refreshed(run)

    threads = [threading.Thread(target=followed, args=(run,)) for run in monitors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for run in monitors:
        refreshed(run)
        assert_holds_what_the_files_say(run)


def test_a_folder_that_cannot_be_written_to_is_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run(tmp_path / "run")
    (folder / CACHE_FOLDER).write_text("a file in the way")  # whoever runs the tests, this refuses even root
    run = opened(folder)
    assert_holds_what_the_files_say(run)
    run.close()


def test_options_come_flat_and_follow_the_file(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    config = folder / "config.yaml"
    config.write_text(
        "model:\n  encoder:\n    class_path: cpc.A\n    init_args:\n      dim: 8\n  extra: null\nseed: [1]\n"
    )
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
    run.close()


@pytest.mark.slow
def test_a_million_records(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    before, after = json.dumps(bound_record(0, num_steps=1)).split('"step": 0', 1)
    with (folder / "bound.jsonl").open("w") as file:
        file.writelines(f'{before}"step": {step}{after}\n' for step in range(10**6))
    index_run(folder)
    add_step(folder, 10**6, num_steps=1)
    append_record(folder / "probe.jsonl", probe_record(10**6))
    append_record(folder / "health.jsonl", health_record(10**6 + 1))
    run = opened(folder)
    (table,) = run.tables(BOUND)
    assert np.array_equal(table.mean("step"), np.arange(10**6 + 1))
    assert table.column("mi_bound_nats").shape == (10**6 + 1, 1)
    run.close()
