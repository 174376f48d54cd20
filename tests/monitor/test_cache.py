"""A second monitor begins where the first one stopped, and nothing in the cache can mislead it."""

import json
import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("orjson", reason="the extra 'dashboard' is not installed")

from benchmarks.synthetic_runs import add_step, bound_record, write_run
from cpc.data.store.records import append_record
from cpc.monitor import cache
from cpc.monitor import run as run_module
from cpc.monitor.library import Library
from cpc.monitor.record_types import RECORD_TYPES
from cpc.monitor.run import Run


def state(run: Run) -> str:
    """All that a run holds, bit for bit."""
    found = []
    for file in run.files.values():
        tables = [
            (key, table.last, {name: (v.dtype, v.tobytes()) for name, v in (table.means | table.by_step).items()})
            for key, table in file.tables.items()
        ]
        found.append((tables, file.num_lines, file.newest_schema, file.num_problems, file.problems, file.tail.offset))
    return repr(found)


def opened(folder: Path, *, with_cache: bool = True) -> Run:
    run = Run(folder, folder.name)
    if with_cache:
        cache.load(run)
    while run.refresh():
        pass
    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run in the cache, with a line that is no record, a grid's columns and numbers beyond 64 bits."""
    folder = write_run(tmp_path / "run")
    with (folder / "bound.jsonl").open("a") as file:
        file.write("no record\n")
    grid = {"steps": [2, 3, 2, 3], "directions": ["down", "down", "up", "up"]}
    append_record(folder / "bound.jsonl", bound_record(3000, schema=10**30, **grid))
    cache.save(opened(folder, with_cache=False))
    return folder


def only_cache() -> Path:
    (path,) = Path(os.environ["XDG_CACHE_HOME"], "cpc", "monitor").iterdir()
    return path


def test_a_second_start_parses_nothing_and_shows_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = state(opened(folder, with_cache=False))
    monkeypatch.setattr(run_module, "parse_lines", lambda *_, **__: 1 / 0)
    assert state(opened(folder)) == expected


def grow(folder: Path) -> None:
    add_step(folder, 9000)


def cut(folder: Path) -> None:
    os.truncate(folder / "bound.jsonl", (folder / "bound.jsonl").stat().st_size // 2)


def replace(folder: Path) -> None:
    (folder / "bound.jsonl").write_text("".join(json.dumps(bound_record(s, level=9.0)) + "\n" for s in range(99)))


def delete(folder: Path) -> None:
    (folder / "probe.jsonl").unlink()


def make_another(folder: Path) -> None:
    shutil.rmtree(folder)
    write_run(folder, num_records=9, level=3.0)


@pytest.mark.parametrize("change", [grow, cut, replace, delete, make_another])
def test_files_that_changed_since_are_shown_as_they_are(folder: Path, change: Callable[[Path], None]) -> None:
    change(folder)
    assert state(opened(folder)) == state(opened(folder, with_cache=False))


def damaged(content: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """A cache whose header was changed, and its checksum with it."""
    length = int.from_bytes(content[4:8], "little")
    header = change(content[8 : 8 + length])
    body = header + content[8 + length :]
    return zlib.crc32(body).to_bytes(4, "little") + len(header).to_bytes(4, "little") + body


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "cut": lambda content: content[:-1],
    "a bit": lambda content: content[:5000] + bytes([content[5000] ^ 1]) + content[5001:],
    "another program's": lambda content: b"PK\x03\x04" * 1000,
    "no JSON": lambda content: damaged(content, lambda header: b"x" + header),
    "another format": lambda content: damaged(content, lambda header: header.replace(b'"format": "', b'"format": "0')),
    "a length": lambda content: damaged(content, lambda header: header.replace(b'"length": 1,', b'"length": 2,')),
    "no records": lambda content: damaged(content, lambda header: header.replace(b'"length": 1,', b'"length": 0,')),
    "a type": lambda content: damaged(content, lambda header: header.replace(b'"offset": ', b'"offset": "x", "y": ')),
    "a list": lambda content: damaged(content, lambda header: b"[]"),
    "more": lambda content: damaged(content + bytes(8), lambda header: header),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_not_a_whole_cache_is_ignored_and_written_again(folder: Path, damage: str) -> None:
    whole = only_cache().read_bytes()
    changed = DAMAGES[damage](whole)
    assert changed != whole
    only_cache().write_bytes(changed)
    assert not cache.load(Run(folder, "run"))
    library = Library([folder])
    library.read_all()
    assert state(library.runs["run"]) == state(opened(folder, with_cache=False))
    library.close()
    assert only_cache().read_bytes() == whole


def test_fields_of_another_type_in_a_cache_are_left_out(folder: Path) -> None:
    content = damaged(
        only_cache().read_bytes(), lambda header: header.replace(b'"reading": "', b'"reading": 3, "x": "')
    )
    only_cache().write_bytes(content)
    run = Run(folder, "run")
    assert cache.load(run)
    assert all("reading" not in table.last for table in run.tables(RECORD_TYPES[0]))


def test_a_cache_that_cannot_be_written_is_mentioned_once(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # as root, too, this cannot be written
    library = Library([runs])
    library.read_all()
    library.close()
    assert capsys.readouterr().err.count("cpc monitor cannot write its cache") == 1
    assert not any(run.error_message for run in library.runs.values())


def test_two_monitors_write_the_same_cache_in_turn_and_both_are_right(folder: Path) -> None:
    monitors = [Library([folder]), Library([folder])]
    for number, library in enumerate(monitors):
        add_step(folder, 9000 + number)
        library.read_all()
    for library in reversed(monitors):  # the one that has read less writes last
        library.close()
        assert state(opened(folder)) == state(opened(folder, with_cache=False))
