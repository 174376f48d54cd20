"""Records of a run: JSONL files with one JSON object per line (docs/records.md)."""

import json
import os
from pathlib import Path
from typing import Any

from cpc.data.store.atomic import finite, json_text, write_atomically
from cpc.data.store.untrusted import read_bytes

_MOST_BYTES = 2**32


def append_record(path: Path, record: dict[str, Any]) -> None:
    """Append a record as one line in a single write, after cutting off a torn line; not finite numbers become null."""
    line = json_text(finite(record)).encode() + b"\n"
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        _cut_torn_line(file)
        written = os.write(file, line)
    finally:
        os.close(file)
    if written < len(line):
        raise OSError(f"only {written} of a record's {len(line)} bytes were written to {path}: is the disk full?")


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return the records of a JSONL file, or [] if there is no file; a torn last line is left out."""
    if not path.exists():
        return []
    lines = read_bytes(path, _MOST_BYTES).split(b"\n")[:-1]  # the text after the last newline is empty or torn
    records = []
    for line_number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {line_number}, is not JSON ({error}): repair or delete it") from error
        if not isinstance(record, dict):
            raise ValueError(f"{path}, line {line_number}, is {str(record)[:80]}, not a record: repair or delete it")
        records.append(record)
    return records


def drop_records_after(path: Path, step: int) -> None:
    """Remove the records after `step`, since a resumed run writes these steps again."""
    if not path.exists():
        return
    kept = [record for record in read_records(path) if record["step"] <= step]
    with write_atomically(path) as new:
        new.write_text("".join(json_text(finite(record)) + "\n" for record in kept), encoding="utf-8")


def _cut_torn_line(file: int) -> None:
    """Truncate the file after its last newline."""
    end = size = os.fstat(file).st_size
    while end:
        block = os.pread(file, min(end, 4096), max(0, end - 4096))
        newline = block.rfind(b"\n")
        if newline >= 0:
            end += newline + 1 - len(block)
            break
        end -= len(block)
    if end < size:
        os.ftruncate(file, end)
