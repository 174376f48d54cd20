"""Records of a run: JSONL files, one JSON object a line, as docs/records.md says."""

import json
import os
from pathlib import Path
from typing import Any

from cpc.data.store.atomic import finite, json_text, write_atomically
from cpc.data.store.untrusted import read_bytes

_MOST_BYTES = 2**32


def append_record(path: Path, record: dict[str, Any]) -> None:
    """Add one line in a single write, so that a kill tears at most the last line; numbers that are not finite are null.

    What an earlier kill has torn is cut off before: the new line would be glued to it, and both be lost.

    Raises:
        OSError: if the disk does not take the whole line; what it took is a torn line.
    """
    line = json_text(finite(record)).encode() + b"\n"
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        _cut_torn_line(file)
        written = os.write(file, line)
    finally:
        os.close(file)
    if written < len(line):
        raise OSError(f"{path} took {written} of a record's {len(line)} bytes: is the disk full?")


def read_records(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a JSONL file, none if there is no file; a torn last line is left out.

    Raises:
        ValueError: if a whole line is not a JSON object; file and line are named. If it is no regular file.
    """
    if not path.exists():
        return []
    lines = read_bytes(path, _MOST_BYTES).split(b"\n")[:-1]  # what follows the last newline is empty or torn
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}, is not JSON ({error}): mend or delete that line") from error
        if not isinstance(record, dict):
            raise ValueError(f"{path}, line {number}, is {str(record)[:80]}, not a record: mend or delete that line")
        records.append(record)
    return records


def drop_records_after(path: Path, step: int) -> None:
    """Keep the records up to `step`: what a resumed run will write again must not be there twice."""
    if not path.exists():
        return
    kept = [record for record in read_records(path) if record["step"] <= step]
    with write_atomically(path) as new:
        new.write_text("".join(json_text(finite(record)) + "\n" for record in kept), encoding="utf-8")


def _cut_torn_line(file: int) -> None:
    """End the file behind its last newline."""
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
