"""What was read of a run, kept in the user's cache folder, so that the next monitor need not parse it again.

One file per run: checksum, length of the header, a JSON header, the columns of every table as little-endian bytes.
There are no locks: a file is replaced at once, the last monitor's is kept, and each says how far it has read.
"""

import contextlib
import gc
import hashlib
import json
import os
import signal
import struct
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from cpc.data.store.atomic import json_text
from cpc.monitor.record_types import RECORD_TYPES, RecordType
from cpc.monitor.text import replace_surrogates
from cpc.monitor.parse import DRAWN_BY_STEP, cast_fields, make_key
from cpc.monitor.run import RecordsFile, Run
from cpc.monitor.table import Key, Table

_FORMAT = f"2 {RECORD_TYPES}"  # the number counts changes of this file and of parse.py; the kinds say which columns there are
_HEAD = struct.Struct("<II")


def save(run: Run) -> None:
    """Replace the run's cache.

    Raises:
        OSError: if it cannot be written.
    """
    path = _path(run)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, new = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
    try:
        with open(descriptor, "wb") as file:
            file.write(pack_tables(run))
        os.replace(new, path)
        run.num_bytes_cached = run.num_bytes_read
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)


def load(run: Run) -> bool:
    """Begin a run where the cache ends; False without one that is whole. Files that have changed are read again."""
    try:
        is_whole = unpack_tables(_path(run).read_bytes(), run)
    except OSError:
        return False
    run.num_bytes_cached = run.num_bytes_read
    return is_whole


def read_run(folder: Path) -> bytes:
    """Everything in a run's folder, read by a process of its own and packed for `unpack_tables`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the monitor
    gc.freeze()  # as the command does
    run = Run(folder, folder.name)
    while run.refresh():
        pass
    return pack_tables(run)


def pack_tables(run: Run) -> bytes:
    """The run's tables, and how far its files were read."""
    header: dict[str, Any] = {"format": _FORMAT, "files": {}}
    columns: list[bytes] = []
    for name, file in run.files.items():
        tables = []
        for key, table in file.tables.items():
            tables.append({"key": key, "length": len(table.means["step"]), "last": table.last})
            for of, column, shape in _columns(file.record_type, key):
                columns.append(np.asarray((table.by_step if shape else table.means)[of], column).tobytes())
        header["files"][name] = {
            "offset": file.tail.offset,
            "mark": file.tail.mark.hex(),
            "counts": [file.num_lines, file.newest_schema, file.num_problems],
            "problems": file.problems,
            "tables": tables,
        }
    words = json_text(header).encode()
    body = b"".join([words, *columns])
    return _HEAD.pack(zlib.crc32(body), len(words)) + body


def unpack_tables(content: bytes, run: Run) -> bool:
    """Begin the run's files where `pack_tables` left them; False, and nothing changed, of bytes that are not whole."""
    try:
        checksum, length = _HEAD.unpack_from(content)
        if checksum != zlib.crc32(memoryview(content)[_HEAD.size :]):
            return False
        at = _HEAD.size + length
        header = json.loads(content[_HEAD.size : at])
        if header["format"] != _FORMAT:
            return False
        files = {}
        for record_type in RECORD_TYPES:
            files[record_type.file], at = _file(header["files"][record_type.file], run.folder, record_type, content, at)
        if at != len(content):
            return False
    except Exception:  # whatever is wrong with it, the files themselves are there to be read
        return False
    run.files.update({name: file for name, file in files.items() if file.tail.path.exists()})
    return True


def _file(header: dict[str, Any], folder: Path, record_type: RecordType, content: bytes, at: int) -> tuple[RecordsFile, int]:
    """A file of records, and where the next one's columns begin."""
    file = RecordsFile(folder / record_type.file, record_type)
    file.tail.offset, file.tail.mark = int(header["offset"]), bytes.fromhex(header["mark"])
    file.num_lines, file.newest_schema, file.num_problems = map(int, header["counts"])
    file.problems = [replace_surrogates(problem) for problem in header["problems"]]
    for each in header["tables"]:
        names, steps, directions = each["key"]
        key = make_key(tuple(steps), tuple(directions), len(steps) if record_type.per_step else None, *names)
        table, length = Table(key, {}, {}, cast_fields(each["last"], key, record_type)), int(each["length"])
        if length < 1 or len(names) != len(record_type.key):
            raise ValueError("a table without records, or of another kind")
        for name, dtype, shape in _columns(record_type, key):
            values = np.frombuffer(content, dtype, length * (shape or 1), at)
            at += values.nbytes
            (table.by_step if shape else table.means)[name] = values.reshape(-1, shape) if shape else values
        file.tables[key] = table
    return file, at


def _columns(record_type: RecordType, key: Key) -> list[tuple[str, str, int]]:
    """(name, type, number of steps k; 0 of a mean) of every column of a table, in the order of the file."""
    names = ("step", *record_type.numbers, *(("chance_accuracy",) if record_type.per_step else ()))
    means = [(name, "<f8" if name == "step" or name.endswith("_seconds") else "<f4", 0) for name in names]
    return means + [(name, "<f4", len(key.steps)) for name in DRAWN_BY_STEP if record_type.per_step]


def _path(run: Run) -> Path:
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError as error:  # a user without a home
        raise OSError(str(error)) from error
    return Path(cache, "cpc", "monitor", hashlib.sha256(os.fsencode(run.folder.resolve())).hexdigest()[:32])
