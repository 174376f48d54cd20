"""One run's folder as the monitor sees it: its tables and configuration, kept up with its files."""

import functools
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from cpc.data.store.untrusted import read_limited_yaml
from cpc.monitor.record_types import BOUND, RECORD_TYPES, RecordType
from cpc.monitor.text import replace_surrogates
from cpc.monitor.parse import parse_lines
from cpc.monitor.table import Key, Table
from cpc.monitor.tail import Tail
from cpc.monitor.view import AS_TRAINED, RUN_COLOURS, View

NUM_PROBLEMS_KEPT = 5
MOST_TABLES = 64  # of a file; a stranger's thousands would keep the page from all other runs
_MOST_CHARACTERS = 2**22  # of the options of a config


class RecordsFile:
    """One of a run's files of records, followed while it grows; one that is cut or replaced is read from its start.

    What was read stays while the file is missing or cannot be read.
    """

    def __init__(self, path: Path, record_type: RecordType) -> None:
        self.record_type = record_type
        self.tail = Tail(path)
        self.unreadable = ""  # why the file cannot be read for now
        self.forget()

    def forget(self) -> None:
        """Forget all lines read before."""
        self.tables: dict[Key, Table] = {}
        self.num_lines = 0
        self.newest_schema = 0
        self.num_problems = 0
        self.problems: list[str] = []  # the first few lines that could not be used, and why

    def refresh(self) -> bool:
        """Read on, about a megabyte at most; whether there is news."""
        before = self.unreadable
        try:
            read = self.tail.read()
            self.unreadable = ""
        except (OSError, ValueError) as error:
            is_missing = isinstance(error, FileNotFoundError)
            self.unreadable = "" if is_missing else replace_surrogates(f"{self.record_type.file} cannot be read: {error}")
            return before != self.unreadable
        if read.from_start:
            self.forget()
        if read.lines:
            try:
                self._add(read.lines)
            except Exception:  # unforeseen: the next call begins again
                self.tail = Tail(self.tail.path)
                raise
        return bool(before or read.from_start or read.lines)

    def notes(self) -> list[str]:
        """What a reader should know about the file."""
        found = [self.unreadable] if self.unreadable else []
        if self.newest_schema > self.record_type.schema:
            found.append(
                f"{self.record_type.file} has schema {self.newest_schema}, known here is {self.record_type.schema}: new fields are "
                "not shown; update cpc to see them"
            )
        if self.num_problems:
            found.append(f"{self.num_problems} lines could not be used: {'; '.join(self.problems)}")
        return found

    def _add(self, lines: list[bytes]) -> None:
        parsed = parse_lines(lines, self.record_type, first_line=self.num_lines + 1)
        for key, table in parsed.tables.items():
            if key in self.tables:
                self.tables[key].extend(table)
            elif len(self.tables) < MOST_TABLES:
                self.tables[key] = table
            else:
                words = ", ".join(key.names)
                parsed.problems.append(f"{self.record_type.file}: {words} would be curve {MOST_TABLES + 1} of {MOST_TABLES}")
        self.num_lines += len(lines)
        self.newest_schema = max(self.newest_schema, parsed.newest_schema)
        self.num_problems += len(parsed.problems)
        self.problems = (self.problems + parsed.problems)[:NUM_PROBLEMS_KEPT]


class Run:
    """A run's records in memory, brought up to date by `refresh`."""

    def __init__(self, folder: Path, name: str, colour: str = RUN_COLOURS[0]) -> None:
        self.folder = folder
        self.name = name
        self.colour = colour
        self.error_message = ""  # what keeps it from being read or shown, until it has news
        self.retry_at = 0.0  # by time.monotonic, where it could not be read
        self._begin()

    def _begin(self) -> None:
        self.deleted_at: float | None = None  # by time.monotonic, when that was seen
        self.num_bytes_cached = 0  # of what was read, in the cache
        self.files = {record_type.file: RecordsFile(self.folder / record_type.file, record_type) for record_type in RECORD_TYPES}

    @property
    def is_deleted(self) -> bool:
        """Whether the folder is gone."""
        return self.deleted_at is not None

    @property
    def changed_at(self) -> float | None:
        """The last write to a file of records, by time.monotonic."""
        return max((at for file in self.files.values() if (at := file.tail.changed_at) is not None), default=None)

    @property
    def num_bytes_read(self) -> int:
        """Of all its files."""
        return sum(file.tail.offset for file in self.files.values())

    @property
    def backlog_bytes(self) -> int:
        """What is still to be read."""
        tails = [file.tail for file in self.files.values() if file.tail.path.exists()]
        return sum(max(0, tail.path.stat().st_size - tail.offset) for tail in tails)

    @property
    def notes(self) -> list[str]:
        """What a reader should know about the run's files."""
        found = [note for file in self.files.values() for note in file.notes()]
        return [*found, self.error_message] if self.error_message else found

    def refresh(self) -> bool:
        """Read on in every file, about a megabyte at most; whether there is news, so that there may be more."""
        if not self.folder.exists():
            was_deleted = self.is_deleted
            self.deleted_at = self.deleted_at or time.monotonic()
            return not was_deleted
        if self.is_deleted:  # another run in its place
            self._begin()
        files = self.files.values()
        before = [file.tables for file in files]
        is_news = [file.refresh() for file in files]
        if any(tables and file.tables is not tables for file, tables in zip(files, before, strict=True)):
            # One was replaced, perhaps by another run's: files which that has not written yet are not its own.
            for file in files:
                if not file.tail.path.exists():
                    file.forget()
        return any(is_news)

    def tables(self, record_type: RecordType) -> list[Table]:
        """The tables of a kind, in the order in which they first appeared."""
        return list(self.files[record_type.file].tables.values())

    def current_tables(self) -> list[Table]:
        """One table of the bound per split and strategy, without strategies that are no longer trained."""
        tables, trained = self.tables(BOUND), newest(self._trained())
        found = {table.key.names: newest(t for t in tables if t.key.names == table.key.names) for table in tables}
        return [table for table in found.values() if table and (table.key.names[0] != "train" or table is trained)]

    def bound(self, view: View) -> Table | None:
        """The records of the split and strategy asked for; None if there are none.

        `as trained` is the strategy of the last training record; without any, the first of the last evaluation.
        """
        trained = newest(self._trained())
        held_out = [table for table in self.tables(BOUND) if table.key.names[0] != "train"]
        tables = self._trained() if view.split == "training" else held_out
        if view.strategy != AS_TRAINED:
            return newest(table for table in tables if table.key.names[1] == view.strategy)
        return newest(t for t in tables if trained and t.key.names[1] == trained.key.names[1]) or newest(tables)

    def config(self) -> dict[str, str]:
        """Options of config.yaml by dotted name; empty where there is none."""
        path = self.folder / "config.yaml"
        try:
            return _options(path, path.stat().st_mtime_ns)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            return {"config.yaml": replace_surrogates(f"cannot be read: {error}")}

    def _trained(self) -> list[Table]:
        return [table for table in self.tables(BOUND) if table.key.names[0] == "train"]


def newest(tables: Iterable[Table]) -> Table | None:
    """The one written to last, by its step: strategy and steps k may change on the way. Of several, the first."""
    return max(tables, key=lambda table: table.last_mean("step"), default=None)


@functools.lru_cache(maxsize=64)
def _options(path: Path, modified_ns: int) -> dict[str, str]:
    options, num_characters = {}, 0
    for name, value in _flatten(read_limited_yaml(path)):
        options[name] = value
        num_characters += len(name) + len(value)
        if num_characters > _MOST_CHARACTERS:
            raise ValueError(f"{path} has options of more than {_MOST_CHARACTERS} characters")
    return options


def _flatten(config: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """(dotted name, value) of every option; `init_args` and `class_path` are left out of the names."""
    if not isinstance(config, dict) or not config:
        yield replace_surrogates(prefix or "config"), "null" if config is None else replace_surrogates(config)
        return
    for name, value in config.items():
        inner = prefix if name in ("init_args", "class_path") else f"{prefix}.{name}".lstrip(".")
        yield from _flatten(value, inner)
