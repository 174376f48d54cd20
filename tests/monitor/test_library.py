"""Folders with and without runs, and runs that come and go."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("orjson", reason="the extra 'dashboard' is not installed")

from benchmarks.made_runs import add_step, write_run
from cpc.monitor import library as library_module
from cpc.monitor.kinds import BOUND
from cpc.monitor.library import Library


def eventually(condition: Callable[[], bool], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_runs_are_found_by_their_records_and_named_below_their_folder(runs: Path, library: Library) -> None:
    (runs / "first" / "model" / "inner").mkdir(parents=True)
    (runs / "empty").mkdir()
    assert set(library.runs) == {"first", "deeper/second"}
    alone = Library([runs / "first"])
    alone.read_all()
    assert set(alone.runs) == {"first"}
    alone.close()


def test_the_same_run_named_twice_is_one_and_other_runs_of_a_name_are_told_apart(tmp_path: Path) -> None:
    for place in ("a", "b"):
        write_run(tmp_path / place / "runs" / "same")
    library = Library([tmp_path / "a" / "runs", tmp_path / "b" / "runs", tmp_path / "a" / "runs"])
    library.read_all()
    assert list(library.runs) == ["same", "runs/same"]
    library.close()


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
        with pytest.raises(ValueError, match=f"{root} is not a folder: name run folders"):
            Library([root])


def test_large_runs_are_indexed_by_processes_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_module, "_MUCH_BYTES", 1000)
    for name in ("a", "b"):
        write_run(tmp_path / name)
    library, told = Library([tmp_path]), list[str]()
    library._find(told.append)
    assert told[:2] == ["indexing run 1 of 2", "indexing run 2 of 2"]
    assert all(run.backlog_bytes == 0 and run.tables(BOUND)[0].num_rows == 40 for run in library.runs.values())
    library.close()


def test_a_run_that_cannot_be_read_is_told_and_tried_again(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_module, "_RETRY_SECONDS", 0.0)
    library = Library([runs])
    library.read_all()
    path, away = runs / "first" / "bound.jsonl", runs / "first" / "away"
    path.rename(away)
    path.mkdir()
    assert library._refresh()
    assert "Is a directory" in library.troubles["first"]
    path.rmdir()
    away.rename(path)
    library.read_all()
    assert library.troubles == {}
    assert library.runs["first"].tables(BOUND)[0].num_rows == 40
    library.close()
