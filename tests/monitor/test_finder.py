"""Where runs are found, and that links, loops and stray files neither hide nor double any."""

import os
from pathlib import Path

import pytest

pytest.importorskip("orjson", reason="the extra 'dashboard' is not installed")

from cpc.monitor import library as library_module
from cpc.monitor.library import FIND_SECONDS, Library, run_folders


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
