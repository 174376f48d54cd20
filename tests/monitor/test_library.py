"""Folders with and without runs, and runs that come and go."""

import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from refusals import refuses

pytest.importorskip("dash", reason="the extra 'dashboard' is not installed")

from benchmarks.synthetic_runs import add_step, bound_record, health_record, probe_record, write_run
from cpc.data.store.atomic import append_record
from cpc.monitor import app as app_module
from cpc.monitor import library as library_module
from cpc.monitor.app import _notices
from cpc.monitor.export import write_export
from cpc.monitor.library import FIND_SECONDS, Library, run_folders
from cpc.monitor.metrics import prometheus_text
from cpc.monitor.overview import overview
from cpc.monitor.record_types import BOUND, HEALTH, PROBE
from cpc.monitor.run import MOST_TABLES
from cpc.monitor.table import replace_surrogates


def eventually(condition: Callable[[], bool], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_runs_are_found_by_their_records_and_named_below_their_folder(
    runs: Path, library: Library, read: Callable[..., Library]
) -> None:
    (runs / "first" / "model" / "inner").mkdir(parents=True)
    (runs / "empty").mkdir()
    assert set(library.runs) == {"first", "deeper/second"}
    assert set(read(runs / "first").runs) == {"first"}


def test_the_same_run_named_twice_is_one_and_other_runs_of_a_name_are_told_apart(
    tmp_path: Path, read: Callable[..., Library]
) -> None:
    roots = [write_run(tmp_path / place / "runs" / "same").parent for place in ("a", "b")]
    assert list(read(*roots, roots[0]).runs) == ["same", "runs/same"]


def test_a_folder_without_runs_is_watched_until_one_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_module, "FIND_SECONDS", 0.1)
    library = Library([tmp_path])
    library.start()
    write_run(tmp_path / "late")
    eventually(lambda: "late" in library.runs and bool(library.runs["late"].tables(BOUND)))
    before = library.revision
    add_step(tmp_path / "late", 9000)
    eventually(lambda: library.revision > before)
    eventually(lambda: library.runs["late"].tables(BOUND)[0].last_mean("step") == 9000)
    shutil.rmtree(tmp_path / "late")
    eventually(lambda: library.runs["late"].is_deleted)
    library.close()


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for root in (tmp_path / "none", tmp_path / "file"):
        refuses(f"{root} is not a folder of runs", Library, [root])


def test_a_file_that_cannot_be_read_leaves_the_rest_of_its_run(runs: Path, library: Library) -> None:
    path, away = runs / "first" / "bound.jsonl", runs / "first" / "away"
    path.rename(away)
    path.mkdir()
    append_record(runs / "first" / "health.jsonl", health_record(2050))
    assert library._refresh()
    assert not library._refresh()  # told once
    (row,) = (row for row in overview(library) if row["name"] == "first")
    assert any("bound.jsonl cannot be read" in note and "Is a directory" in note for note in row["notes"])
    assert library.runs["first"].tables(BOUND)[0].means["step"].size == 40
    assert library.runs["first"].tables(HEALTH)[0].last_mean("step") == 2050
    path.rmdir()
    away.rename(path)
    add_step(runs / "first", 2100)
    library.read_all()
    assert not any(row["notes"] for row in overview(library))
    assert library.runs["first"].tables(BOUND)[0].means["step"].size == 41


def test_an_error_in_a_run_or_search_ends_nothing(
    runs: Path, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library_module, "FIND_SECONDS", 0.1)
    library._find()

    def broken(*_: object) -> bool:
        raise ZeroDivisionError("unforeseen")

    with monkeypatch.context() as patched:
        patched.setattr(library.runs["first"], "refresh", broken)
        patched.setattr(library_module, "run_folders", broken)
        library.start()
        add_step(runs / "deeper" / "second", 9000)
        eventually(lambda: bool(library.error_message and library.runs["first"].error_message))
        told = list(_notices(library, overview(library)))
        assert "cpc monitor cannot look for runs: ZeroDivisionError: unforeseen." in told
        assert any("The files of first have problems" in sentence for sentence in told)
        eventually(lambda: library.runs["deeper/second"].tables(BOUND)[0].last_mean("step") == 9000)
    eventually(lambda: not library.error_message and not library.runs["first"].error_message)
    library.close()


def test_the_page_says_how_much_is_still_to_be_read(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "MUCH_BYTES", 1000)
    library = Library([runs])
    library._find()
    reading, num_runs = _notices(library, overview(library))
    assert re.fullmatch(r"Reading: 0\.\d MB are left to read\.", reading)
    library.read_all()
    assert num_runs == "2 runs."
    assert list(_notices(library, overview(library))) == [num_runs]


def test_a_run_that_cannot_be_shown_leaves_the_others(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> float:
        raise ZeroDivisionError("unforeseen")

    for table in library.runs["first"].tables(BOUND):
        monkeypatch.setattr(table, "last_mean", broken)
    by_name = {row["name"]: row for row in overview(library)}
    assert "cannot be shown: ZeroDivisionError: unforeseen" in by_name["first"]["notes"]
    assert by_name["deeper/second"]["step"] == 2000
    assert b'cpc_step{run="deeper/second"} 2000' in prometheus_text(library)


def test_types_nobody_foresaw_are_left_out_everywhere(runs: Path, tmp_path: Path, read: Callable[..., Library]) -> None:
    odd = runs / "first"
    newer = {"loss_nats": {"k": 1}, "saturated": 3, "biased": [None] * 4, "reading": ["x"], "mi_ceiling_nats": "high"}
    newer |= {"num_rows": [{}] * 4, "information_for_gaussians_nats": 1.0}
    append_record(odd / "bound.jsonl", bound_record(2050, schema=2, **newer))
    append_record(odd / "bound.jsonl", bound_record(2050, "valid", schema=2, **newer))
    unclear = {"collapsed": True, "time_unix_seconds": "noon", "gradient_norm": [1], "z_variance": 10**400}
    for step in (2050, 2100):
        append_record(odd / "health.jsonl", health_record(step, **unclear))
    append_record(odd / "probe.jsonl", probe_record(2050, task="a\ud800", accuracy={"top1": 1}))
    event = {"schema": 2, "step": [], "time_unix_seconds": "noon", "event": 1, "message": 2}
    append_record(odd / "events.jsonl", event)
    (odd / "config.yaml").write_text('a: &a {b: *a}\nc: "\\ud800"\n')
    library = read(runs)
    rows = overview(library)
    assert {row["name"]: row["step"] for row in rows} == {"first": 2050, "deeper/second": 2000}
    (of_odd,) = (row for row in rows if row["name"] == "first")
    assert of_odd["badges"] == []
    assert "1 lines could not be used: events.jsonl" in of_odd["notes"][-1]
    text = prometheus_text(library).decode()
    assert 'cpc_mi_bound_nats{direction="",k="1",run="first",split="train",strategy="mixed"}' in text
    assert 'cpc_loss_nats{direction="",k="1",run="first",split="train"' not in text
    write_export(tmp_path / "page.html", library)
    assert not any(run.error_message for run in library.runs.values())


def test_names_that_are_not_utf_8_are_names_all_the_same(tmp_path: Path, read: Callable[..., Library]) -> None:
    for name in (b"run\xff", b"run\xfe", b"run?"):
        write_run(Path(os.fsdecode(os.fsencode(tmp_path / "runs") + b"/" + name)))
    library = read(tmp_path / "runs")
    assert "run?" in library.runs
    assert len(set(library.runs)) == 3
    assert all(name == replace_surrogates(name) and "run?" in name for name in library.runs)
    prometheus_text(library)
    write_export(tmp_path / "page.html", library)


def test_a_deleted_run_leaves_after_a_day_recolouring_none(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    colours = {name: run.colour for name, run in library.runs.items()}
    first = next(iter(library.runs))
    folder = library.runs[first].folder
    shutil.rmtree(folder)
    library.read_all()
    assert library.runs[first].is_deleted
    (badge,) = [line for line in prometheus_text(library).decode().splitlines() if f'"deleted",run="{first}"' in line]
    assert badge.endswith(" 1.0")
    assert f'cpc_step{{run="{first}"}}' not in prometheus_text(library).decode()
    monkeypatch.setattr(library_module, "DELETED_SECONDS", -1.0)
    library.read_all()
    assert first not in library.runs
    assert [row["colour"] for row in overview(library)] == [colours[name] for name in library.runs]
    write_run(folder)
    library.read_all()
    assert {name: run.colour for name, run in library.runs.items()} == colours
    assert library.runs[first].tables(BOUND)[0].means["step"].size == 40


@pytest.mark.parametrize("name", ["health.jsonl", "bound.jsonl", "config.yaml"])
@pytest.mark.parametrize("kind", ["FIFO", "device", "aliases", "line without an end"])
def test_a_file_that_never_ends_keeps_no_other_run_from_the_page(runs: Path, name: str, kind: str) -> None:
    stranger = write_run(runs / "stranger")
    (stranger / name).unlink(missing_ok=True)
    if kind == "FIFO":
        os.mkfifo(stranger / name)
    elif kind == "device":
        (stranger / name).symlink_to("/dev/zero")
    elif kind == "aliases":
        lines = [f"{chr(98 + i)}: &{chr(98 + i)} {{<<: [{','.join(['*' + chr(97 + i)] * 9)}]}}" for i in range(20)]
        (stranger / name).write_text("\n".join(["a: &a {b: 1}", *lines]))
    else:
        with (stranger / name).open("wb") as file:
            file.truncate(2**40)  # takes no disk
    library = Library([runs])
    reader = threading.Thread(target=library.read_all, daemon=True)
    reader.start()
    reader.join(5)
    assert not reader.is_alive()
    assert library.runs["first"].tables(BOUND)
    if name == "config.yaml":
        assert "cannot be read" in library.runs["stranger"].config()["config.yaml"]
    elif kind != "aliases":  # whose lines are no records
        assert any(f"{name} cannot be read" in note for note in library.runs["stranger"].notes)


def test_thousands_of_curves_of_one_file_are_left_out_and_counted(runs: Path, library: Library) -> None:
    for number in range(200):
        append_record(runs / "first" / "probe.jsonl", probe_record(2, task=f"task {number}"))
    library.read_all()
    assert len(library.runs["first"].tables(PROBE)) == MOST_TABLES
    assert any("probe.jsonl: task " in note for note in library.runs["first"].notes)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 1e308, 1e39, 3e38, pytest.param(10**400, id="10^400")])
def test_what_no_chart_holds_costs_no_other_run_charts(runs: Path, value: float, read: Callable[..., Library]) -> None:
    """Every piece of JSON on the page is such as browsers read, and drawn values are finite or gaps."""
    stranger = write_run(runs / "stranger")
    for name, record in (
        ("bound.jsonl", bound_record(10**6, mi_bound_nats=[value] * 4, loss_nats=[value] * 4)),
        ("bound.jsonl", bound_record(9, split="valid") | {"step": value}),
        ("health.jsonl", health_record(10**6, gradient_norm=value, trained_seconds=value)),
        ("probe.jsonl", probe_record(10**6, accuracy=value)),
    ):
        with (stranger / name).open("a") as file:
            file.write(json.dumps(record) + "\n")
    library = read(runs)
    write_export(runs / "page.html", library)
    page = (runs / "page.html").read_text()
    found = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)
    assert len(found) > 10
    for each in found:
        json.loads(each, parse_constant=lambda word: pytest.fail(f"{word} on the page"))
    for run in library.runs.values():
        for kind in (BOUND, HEALTH, PROBE):
            for table in run.tables(kind):
                assert not any(np.isinf(column).any() for column in (*table.means.values(), *table.by_step.values()))


def made(root: Path, *names: str) -> None:
    for name in names:
        (root / name).mkdir(parents=True)
        (root / name / "bound.jsonl").touch()


def found(*roots: Path) -> list[str]:
    return [folder.relative_to(roots[0]).as_posix() for folder in run_folders(roots)]


def test_a_root_may_be_a_run_and_hold_others(tmp_path: Path) -> None:
    made(tmp_path, "a", "b/c", "a/inner", ".hidden/d", "1/2/3/4/5/6", "1/2/3/4/5/7/8")
    assert found(tmp_path) == ["1/2/3/4/5/6", "a", "b/c"]
    (tmp_path / "events.jsonl").touch()
    assert found(tmp_path) == [".", "1/2/3/4/5/6", "a", "b/c"]


def test_links_are_followed_once_and_after_all_else(tmp_path: Path) -> None:
    made(tmp_path, "runs/run7", "elsewhere/deep/run8")
    (tmp_path / "runs" / "latest").symlink_to("run7")
    (tmp_path / "runs" / "loop").symlink_to(tmp_path / "runs")
    (tmp_path / "runs" / "more").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "runs" / "nowhere").symlink_to("gone")
    assert found(tmp_path / "runs") == ["run7", "more/deep/run8"]
    assert found(tmp_path / "runs", tmp_path / "runs" / "run7") == ["run7", "more/deep/run8"]


def test_a_long_search_comes_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(library_module.time, "monotonic", lambda: now[0])
    library = Library([tmp_path])
    library.read_all()
    assert library._find_at == now[0] + FIND_SECONDS

    def slow(roots: object) -> list[Path]:
        now[0] += 60
        return []

    monkeypatch.setattr(library_module, "run_folders", slow)
    library.read_all()
    assert library._find_at == pytest.approx(now[0] + 1200)


def test_what_nobody_may_read_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path, "a", "private/b")
    real = os.scandir

    def refusing(folder: str) -> object:
        if folder.endswith("private"):
            raise PermissionError
        return real(folder)

    monkeypatch.setattr(os, "scandir", refusing)
    assert found(tmp_path) == ["a"]
