"""Lines of JSON that survive a kill: what was whole stays, what was torn never spoils its neighbour."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cpc.data.store.atomic import append_record, drop_records_after, read_records

APPEND_FOR_EVER = """
import sys
from pathlib import Path
from cpc.data.store.atomic import append_record
step = 0
while True:
    append_record(Path(sys.argv[1]), {"step": step, "values": [0.1] * 2000})
    step += 1
"""


def test_records_come_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "bound.jsonl"
    records = [{"step": step, "name": "é", "value": None} for step in range(3)]
    for record in records:
        append_record(path, record)
    assert read_records(path) == records
    assert read_records(tmp_path / "none.jsonl") == []


@pytest.mark.parametrize("torn", ['{"step": 1, "va', "x" * 10000, "\u00e9"])
def test_a_torn_line_is_left_out_and_cut_off_before_the_next(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "bound.jsonl"
    append_record(path, {"step": 0})
    with path.open("ab") as file:
        file.write(torn.encode()[:-1])  # in the middle of a character even
    assert read_records(path) == [{"step": 0}]
    append_record(path, {"step": 2})
    assert path.read_text() == '{"step": 0}\n{"step": 2}\n'


def test_a_file_that_is_one_torn_line_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "bound.jsonl"
    path.write_text("{" * 9000)
    append_record(path, {"step": 0})
    assert path.read_text() == '{"step": 0}\n'


def test_kills_lose_no_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "bound.jsonl"
    for _ in range(3):
        before = path.read_bytes() if path.exists() else b""
        writer = subprocess.Popen([sys.executable, "-c", APPEND_FOR_EVER, str(path)])
        deadline = time.monotonic() + 30
        while not path.exists() or path.stat().st_size < len(before) + 10**6:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        assert path.read_bytes().startswith(before[: before.rfind(b"\n") + 1])
        with path.open("ab") as file:  # a kill in mid-write is too rare to wait for
            file.write(b'{"step": 7, "val')
    steps = [record["step"] for record in read_records(path)]
    assert steps.count(0) == 3
    assert all(json.loads(line) for line in path.read_text().split("\n")[:-1])


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bound.jsonl"
    path.write_text('{"step": 0}\n{"st\n{"step": 1}\n')
    with pytest.raises(ValueError, match=r"bound\.jsonl, line 2, is not JSON"):
        read_records(path)


def test_records_after_a_step_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "bound.jsonl"
    for step in range(5):
        append_record(path, {"step": step})
    drop_records_after(path, 2)
    assert [record["step"] for record in read_records(path)] == [0, 1, 2]
