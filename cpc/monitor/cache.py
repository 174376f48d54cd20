"""A cache of parsed records in the user's cache folder, so that the next monitor does not parse them again.

One file per run: checksum, length of the header, a JSON header, the columns of every table as little-endian bytes.
Locks are not needed: a file is replaced atomically, and the monitor that writes last wins. The header has the offset
up to which each file of records was read.
"""

import hashlib
import json
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from cpc.data.store.atomic import json_text
from cpc.monitor.parse import FIELDS_BY_STEP, cast_fields, make_key
from cpc.monitor.record_types import RECORD_TYPES, RecordType
from cpc.monitor.run import RecordsFile, Run
from cpc.monitor.table import Key, Table
from cpc.monitor.text import replace_surrogates

# Raise the number with every change of this file or of parse.py; the record types determine the columns.
_FORMAT = f"2 {RECORD_TYPES}"
_HEAD = struct.Struct("<II")


def save(run: Run) -> None:
    """Replace the run's cache.

    Raises:
        OSError: if it cannot be written.
    """
    path = _path(run)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}")  # other monitors may write this cache
    try:
        new.write_bytes(_packed(run))
        os.replace(new, path)
        run.num_bytes_cached = run.num_bytes_read
    finally:
        new.unlink(missing_ok=True)


def load(run: Run) -> bool:
    """Load a run's tables from the cache. Without a valid cache, change nothing and return False.

    Files of records that have changed since the cache was written are read again.
    """
    try:
        content = _path(run).read_bytes()
        checksum, length = _HEAD.unpack_from(content)
        at = _HEAD.size + length
        header = json.loads(content[_HEAD.size : at])
        if checksum != zlib.crc32(memoryview(content)[_HEAD.size :]) or header["format"] != _FORMAT:
            return False
        files = {}
        for record_type in RECORD_TYPES:
            files[record_type.file], at = _file(header["files"][record_type.file], run.folder, record_type, content, at)
        if at != len(content):
            return False
    except Exception:  # if the cache is missing, or damaged in any way, the records themselves are read
        return False
    run.files.update({name: file for name, file in files.items() if file.tail.path.exists()})
    run.num_bytes_cached = run.num_bytes_read
    return True


def _packed(run: Run) -> bytes:
    """Return the run's tables, and the offsets up to which its files were read."""
    header: dict[str, Any] = {"format": _FORMAT, "files": {}}
    columns: list[bytes] = []
    for name, file in run.files.items():
        tables = []
        for key, table in file.tables.items():
            tables.append({"key": key, "length": len(table.means["step"]), "last": table.last})
            for field, dtype, num_steps in _columns(file.record_type, key):
                columns.append(np.asarray((table.by_step if num_steps else table.means)[field], dtype).tobytes())
        header["files"][name] = {
            "offset": file.tail.offset,
            "mark": file.tail.mark.hex(),
            "counts": [file.num_lines, file.newest_schema, file.num_problems],
            "problems": file.problems,
            "tables": tables,
        }
    header_bytes = json_text(header).encode()
    body = b"".join([header_bytes, *columns])
    return _HEAD.pack(zlib.crc32(body), len(header_bytes)) + body


def _file(
    header: dict[str, Any], folder: Path, record_type: RecordType, content: bytes, at: int
) -> tuple[RecordsFile, int]:
    """Return a file of records, and the position at which the columns of the next file begin."""
    file = RecordsFile(folder / record_type.file, record_type)
    file.tail.offset, file.tail.mark = int(header["offset"]), bytes.fromhex(header["mark"])
    file.num_lines, file.newest_schema, file.num_problems = map(int, header["counts"])
    file.problems = [replace_surrogates(problem) for problem in header["problems"]]
    for entry in header["tables"]:
        names, steps, directions = entry["key"]
        key = make_key(tuple(steps), tuple(directions), len(steps) if record_type.per_step else None, *names)
        table, length = Table(key, {}, {}, cast_fields(entry["last"], key, record_type)), int(entry["length"])
        if length < 1 or len(names) != len(record_type.key):
            raise ValueError("a table without records, or of another type")
        for name, dtype, num_steps in _columns(record_type, key):
            values = np.frombuffer(content, dtype, length * (num_steps or 1), at)
            at += values.nbytes
            (table.by_step if num_steps else table.means)[name] = values.reshape(-1, num_steps) if num_steps else values
        file.tables[key] = table
    return file, at


def _columns(record_type: RecordType, key: Key) -> list[tuple[str, str, int]]:
    """Return, for every column in the order of the file: name, type, and the number of steps k (0 for a mean)."""
    names = ("step", *record_type.numbers, *(("chance_accuracy",) if record_type.per_step else ()))
    means = [(name, "<f8" if name == "step" or name.endswith("_seconds") else "<f4", 0) for name in names]
    return means + [(name, "<f4", len(key.steps)) for name in FIELDS_BY_STEP if record_type.per_step]


def _path(run: Run) -> Path:
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError as error:  # the user may have no home folder
        raise OSError(str(error)) from error
    return Path(cache, "cpc", "monitor", hashlib.sha256(os.fsencode(run.folder.resolve())).hexdigest()[:32])
