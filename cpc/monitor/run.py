"""The records and the configuration of a run's folder, which are updated while the files grow."""

import functools
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from cpc.data.store.untrusted import open_regular, read_yaml
from cpc.monitor.record_types import BOUND, RECORD_TYPES, RecordType
from cpc.monitor.table import Key, Table, parse_lines, replace_surrogates
from cpc.monitor.view import AS_TRAINED, RUN_COLOURS, View

CHUNK_BYTES = 1 << 22  # read at once; the longest line
NUM_PROBLEMS_KEPT = 5
MOST_TABLES = 64  # largest number of tables of a file; thousands of tables would block the page for all other runs
_MARK_BYTES = 512


class RecordsFile:
    """A file of records of a run, which is read while it grows. A file that is cut or replaced is read from its start.

    The records read so far stay while the file is missing or cannot be read.
    """

    def __init__(self, path: Path, record_type: RecordType) -> None:
        self.path = path
        self.record_type = record_type
        self.why_unreadable = ""  # the reason why the file cannot be read at the moment
        self.changed_at: float | None = None  # by time.monotonic, when the file was last written to
        self._modified_at: float | None = None
        self._seen: tuple[int, int, int] | None = None  # the file's state when it was last read to its end
        self.forget()

    def forget(self) -> None:
        """Forget all records read so far."""
        self.tables: dict[Key, Table] = {}
        self.offset = 0  # number of bytes read, up to and including a newline
        self._mark = b""  # the bytes before `offset`: if the file has others, it is another file
        self.num_lines = 0
        self.newest_schema = 0
        self.num_problems = 0
        self.problems: list[str] = []  # the first few lines that could not be used, and why

    def refresh(self) -> bool:
        """Read the next complete lines, about 4 MB at most, and return whether anything changed."""
        why, tables, offset = self.why_unreadable, self.tables, self.offset
        self.why_unreadable = ""
        try:
            self._read()
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            self.why_unreadable = replace_surrogates(f"{self.record_type.file} cannot be read: {error}")
        return (why, offset) != (self.why_unreadable, self.offset) or tables is not self.tables

    def _read(self) -> None:
        state = os.stat(self.path)
        seen = (state.st_ino, state.st_size, state.st_mtime_ns)
        if seen == self._seen:
            return
        if state.st_mtime != self._modified_at:
            # Clocks differ between machines, so only the first age is that of the file's time.
            age = max(0.0, time.time() - state.st_mtime) if self._modified_at is None else 0.0
            self.changed_at, self._modified_at = time.monotonic() - age, state.st_mtime
        with open_regular(self.path) as file:
            file.seek(self.offset - len(self._mark))
            if file.read(len(self._mark)) != self._mark:
                self.forget()
                file.seek(0)
            block = file.read(CHUNK_BYTES)
        lines = block[: block.rfind(b"\n") + 1]
        if not lines and len(block) == CHUNK_BYTES:
            raise ValueError(f"the line that begins at byte {self.offset} has more than {CHUNK_BYTES} bytes")
        self._add(lines.split(b"\n")[:-1])
        self.offset += len(lines)
        self._mark = (self._mark + lines)[-_MARK_BYTES:]
        self._seen = seen if len(block) < CHUNK_BYTES else None

    def notes(self) -> list[str]:
        """Return sentences about problems with the file."""
        notes = [self.why_unreadable] if self.why_unreadable else []
        file, schema = self.record_type.file, self.record_type.schema
        if self.newest_schema > schema:
            notes.append(f"{file} has schema {self.newest_schema}, but this cpc reads up to {schema}: update cpc")
        if self.num_problems:
            notes.append(f"{self.num_problems} lines could not be used: {'; '.join(self.problems)}")
        return notes

    def _add(self, lines: list[bytes]) -> None:
        tables, problems, schema = parse_lines(lines, self.record_type, first_line=self.num_lines + 1)
        for key, table in tables.items():
            if key in self.tables:
                self.tables[key].extend(table)
            elif len(self.tables) < MOST_TABLES:
                self.tables[key] = table
            else:
                problems.append(f"{self.record_type.file}: {', '.join(key.names)} is curve {MOST_TABLES + 1}")
        self.num_lines += len(lines)
        self.newest_schema = max(self.newest_schema, schema)
        self.num_problems += len(problems)
        self.problems = (self.problems + problems)[:NUM_PROBLEMS_KEPT]


class Run:
    """The records of a run in memory; `refresh` updates them."""

    def __init__(self, folder: Path, name: str, colour: str = RUN_COLOURS[0]) -> None:
        self.folder = folder
        self.name = name
        self.colour = colour
        self.error_message = ""  # why the run cannot be read or shown; empty again once it changes
        self._begin()

    def _begin(self) -> None:
        self.deleted_at: float | None = None  # time when the folder was first missing, by time.monotonic
        self.files = {each.file: RecordsFile(self.folder / each.file, each) for each in RECORD_TYPES}

    @property
    def is_deleted(self) -> bool:
        """Whether the folder was deleted."""
        return self.deleted_at is not None

    @property
    def changed_at(self) -> float | None:
        """The time of the last write to a file of records, by time.monotonic; None without files."""
        return max((at for file in self.files.values() if (at := file.changed_at) is not None), default=None)

    @property
    def backlog_bytes(self) -> int:
        """The number of bytes that are not read yet."""
        files = [file for file in self.files.values() if file.path.is_file()]
        return sum(max(0, file.path.stat().st_size - file.offset) for file in files)

    @property
    def notes(self) -> list[str]:
        """Sentences about problems with the run's files."""
        notes = [note for file in self.files.values() for note in file.notes()]
        return [*notes, self.error_message] if self.error_message else notes

    def refresh(self) -> bool:
        """Read the next records of every file, about 4 MB each at most; return whether anything changed."""
        if not self.folder.exists():
            deleted_at, self.deleted_at = self.deleted_at, self.deleted_at or time.monotonic()
            return deleted_at is None
        if self.is_deleted:  # a new run may have the same folder
            self._begin()
        files = self.files.values()
        before = [file.tables for file in files]
        has_changed = [file.refresh() for file in files]
        if any(tables and file.tables is not tables for file, tables in zip(files, before, strict=True)):
            for file in files:  # a new run may have replaced the files: missing files belong to the old run
                if not file.path.exists():
                    file.forget()
        return any(has_changed)

    def tables(self, record_type: RecordType) -> list[Table]:
        """Return the tables of a record type, in the order in which they first appeared."""
        return list(self.files[record_type.file].tables.values())

    def current_tables(self) -> list[Table]:
        """Return one table of the bound per split and strategy, without earlier training strategies."""
        tables, trained = self.tables(BOUND), self._newest("train")
        by_names = {table.key.names: newest(t for t in tables if t.key.names == table.key.names) for table in tables}
        return [table for table in by_names.values() if table and (table.key.names[0] != "train" or table is trained)]

    def bound(self, view: View) -> Table | None:
        """Return the records of the view's split and strategy; None if there are none.

        `as trained` is the strategy of the last training record. If there are no training records, it is the first
        strategy of the last evaluation.
        """
        trained = self._newest("train")
        if view.strategy != AS_TRAINED:
            return self._newest(view.split, view.strategy)
        return (trained and self._newest(view.split, trained.key.names[1])) or self._newest(view.split)

    def config(self) -> dict[str, str]:
        """Return the options of config.yaml by dotted name; empty if there is no config.yaml."""
        path = self.folder / "config.yaml"
        try:
            return _options(path, path.stat().st_mtime_ns)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            return {"config.yaml": replace_surrogates(f"cannot be read: {error}")}

    def _newest(self, split: str, strategy: str | None = None) -> Table | None:
        is_train = split in ("train", "training")
        tables = [table for table in self.tables(BOUND) if (table.key.names[0] == "train") == is_train]
        return newest(table for table in tables if strategy in (None, table.key.names[1]))


def newest(tables: Iterable[Table]) -> Table | None:
    """Return the table with the latest training step (of several, the first); None without tables.

    A run has several tables if its strategy or its steps k changed during training.
    """
    return max(tables, key=lambda table: table.last_mean("step"), default=None)


@functools.lru_cache(maxsize=64)
def _options(path: Path, modified_ns: int) -> dict[str, str]:
    return dict(_flatten(read_yaml(path)))


def _flatten(config: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (dotted name, value) of every option; `init_args` and `class_path` are left out of the names."""
    if not isinstance(config, dict) or not config:
        yield replace_surrogates(prefix or "config"), "null" if config is None else replace_surrogates(config)
        return
    for name, value in config.items():
        inner = prefix if name in ("init_args", "class_path") else f"{prefix}.{name}".lstrip(".")
        yield from _flatten(value, inner)
