"""Atomic writing: readers see either the old file or the new file, even if the writer is killed.

The records of a run are JSONL files with one JSON object per line (docs/records.md).
"""

import json
import math
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from cpc.config.argument_rules import plain
from cpc.data.store.untrusted import read_bytes


@contextmanager
def write_atomically(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path, whose file replaces `path` when the block ends; the folder is created if necessary."""
    path = Path(path)
    new = path.with_name(f"{path.name}.new")
    try:
        with named(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield new
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


def json_text(content: Any, **options: Any) -> str:
    """Return content as strict JSON, without NaN and infinity, which other languages cannot read.

    Numbers and arrays of numpy are written like those of Python.
    """
    return json.dumps(content, allow_nan=False, default=_written, **options)


def _written(value: Any) -> Any:
    if (written := plain(value)) is value:
        raise TypeError(f"{type(value).__name__} is not JSON serializable")
    return written


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Add the path to an OSError without one, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_json(content: Mapping[str, Any], path: str | Path) -> None:
    """Replace a JSON file, as `write_atomically` does."""
    with write_atomically(path) as new:
        new.write_text(json_text(content, indent=2) + "\n", encoding="utf-8")


def finite(content: Any) -> Any:
    """Return the same dicts, lists and values, with None for each number that is not finite."""
    if isinstance(content, Mapping):
        return {key: finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


_ABANDONED_AFTER_SECONDS = 3600


def build_once(folder: Path, is_complete: Callable[[Path], bool], build: Callable[[], None]) -> None:
    """Call `build`, which builds atomically, unless the folder is complete. Of several processes one builds."""
    if not is_complete(folder):
        with _locked(folder):
            if not is_complete(folder):
                build()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a lock of the system, which releases the lock when the process ends, even if it is killed."""
    import fcntl  # only where folders are built, since Windows has none

    path = folder.with_name(f"{folder.name}.lock")
    with ExitStack() as held:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = held.enter_context(path.open("w"))
            held.callback(path.unlink, missing_ok=True)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print(f"waiting for another process that makes {folder}", file=sys.stderr)
                fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:  # without a lock, several processes build; `build` reports a folder that cannot be written
            pass
        yield


@contextmanager
def build_atomically(folder: Path, is_complete: Callable[[Path], bool], option: str | None = None) -> Iterator[Path]:
    """Yield a temporary folder, which is renamed to `folder` when the block ends, and removed if the block fails.

    Several processes may build one folder at the same time: that of the process that ends first remains. After a
    kill -9 a folder `<folder>.partial-*` remains; a later call removes it if nothing was written to it for an hour.
    """
    unfinished = folder.with_name(f"{folder.name}.partial-{secrets.token_hex(4)}")
    try:
        unfinished.mkdir(parents=True)
    except OSError as error:
        where = f" with `{option}`" if option else ""
        reason = f"{error.strerror}: this folder cannot be written; name another place{where}"
        raise OSError(error.errno, reason, str(folder.parent)) from error
    try:
        _remove_abandoned(folder)
        with named(folder):
            yield unfinished
        for path in filter(Path.is_file, unfinished.iterdir()):
            with path.open("rb") as stream:
                os.fsync(stream.fileno())
        if folder.exists() and not is_complete(folder):
            shutil.rmtree(folder)
        try:
            unfinished.rename(folder)
        except OSError:
            if not is_complete(folder):  # another process was faster if the folder is complete
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _remove_abandoned(folder: Path) -> None:
    """Remove temporary folders that killed processes left. A running process would still write to its folder."""
    for leftover in folder.parent.glob(f"{folder.name}.partial-*"):
        try:
            last_written = max(path.stat().st_mtime for path in (leftover, *leftover.iterdir()))
        except FileNotFoundError:  # another process has just renamed or removed it
            continue
        if last_written < time.time() - _ABANDONED_AFTER_SECONDS:
            shutil.rmtree(leftover, ignore_errors=True)


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
        end += block.rfind(b"\n") + 1 - len(block)
        if b"\n" in block:
            break
    if end < size:
        os.ftruncate(file, end)
