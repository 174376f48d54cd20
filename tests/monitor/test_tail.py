"""Files that grow, tear, shrink, change and vanish under the reader."""

import os
from pathlib import Path

import pytest

from cpc.monitor import tail as tail_module
from cpc.monitor.tail import Lines, Tail


def test_lines_come_once_and_a_torn_one_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "bound.jsonl"
    path.write_bytes(b"one\ntwo\nthr")
    tail = Tail(path)
    assert tail.read() == Lines([b"one", b"two"], True)
    assert tail.read() == Lines([], False)
    with path.open("ab") as file:
        file.write(b"ee\nfour\n")
    assert tail.read() == Lines([b"three", b"four"], False)


def test_a_missing_file_is_an_error_and_may_come(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "bound.jsonl")
    with pytest.raises(FileNotFoundError):
        tail.read()
    tail.path.write_bytes(b"one\n")
    assert tail.read().lines == [b"one"]


def test_a_file_that_shrank_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "bound.jsonl"
    path.write_bytes(b"one\ntwo\nthree\n")
    tail = Tail(path)
    tail.read()
    os.truncate(path, 4)
    assert tail.read() == Lines([b"one"], True)


def test_a_replaced_file_starts_anew_though_it_has_grown(tmp_path: Path) -> None:
    path, new = tmp_path / "bound.jsonl", tmp_path / "new"
    path.write_bytes(b"one\ntwo\n")
    tail = Tail(path)
    tail.read()
    new.write_bytes(b"one\nTWO\nthree\n")
    os.replace(new, path)
    assert tail.read() == Lines([b"one", b"TWO", b"three"], True)


def test_a_replaced_file_with_the_same_beginning_goes_on(tmp_path: Path) -> None:
    """What a resumed run leaves: the same records, written again."""
    path, new = tmp_path / "bound.jsonl", tmp_path / "new"
    path.write_bytes(b"one\ntwo\n")
    tail = Tail(path)
    tail.read()
    new.write_bytes(b"one\ntwo\nthree\n")
    os.replace(new, path)
    assert tail.read() == Lines([b"three"], False)


def test_a_cut_in_the_middle_of_reading_loses_nothing_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bound.jsonl"
    path.write_bytes(b"one\ntwo\nthree\n")
    pread = os.pread

    def cut_first(file: int, size: int, offset: int) -> bytes:
        os.truncate(path, 6)
        return pread(file, size, offset)

    monkeypatch.setattr(tail_module.os, "pread", cut_first)
    tail = Tail(path)
    assert tail.read().lines == [b"one"]
    monkeypatch.undo()
    with path.open("ab") as file:
        file.write(b"o\n")
    assert tail.read() == Lines([b"two"], False)


def test_long_files_come_in_parts_and_lines_longer_than_a_part_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_module, "CHUNK_BYTES", 64)
    lines = [b"%d" % i * (1 + 10 * (i % 20)) for i in range(200)]
    path = tmp_path / "bound.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\ntorn")
    tail, found = Tail(path), []
    for _ in range(10_000):
        read = tail.read()
        found += read.lines
        if not read.lines:
            break
    assert found == lines
