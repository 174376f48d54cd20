"""One run's folder as the monitor sees it: its tables, events and configuration, kept up with its files."""

import fcntl
import gc
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import yaml

from cpc.data.atomic import write_atomically
from cpc.monitor.kinds import EVENTS_FILE, KINDS, Key, Kind, parse_lines
from cpc.monitor.table import Table
from cpc.monitor.tail import Tail

CACHE_FOLDER = ".cpc_monitor"
CACHE_FORMAT = 1
NUM_PROBLEMS_KEPT = 5


class Run:
    """A run's records in columns, beside it in `.cpc_monitor`, brought up to date by `refresh`.

    Where the folder cannot be written to, or another monitor holds it, the columns go to a temporary folder.

    Args:
        folder: the run's folder.
        name: shown to the user.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self.is_deleted = False
        self.written_at = 0.0  # unix seconds of the last write to a file of records
        self._config: tuple[int, dict[str, str]] = (0, {})
        self.events: list[dict[str, Any]]
        self.problems: list[str]  # the first few lines that could not be used, and why
        self.num_problems: dict[str, int]  # all of them, by file
        self.notes: dict[str, str]  # what to know about a file
        self._lock: int | None = None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self.cache = self._take_cache()
        self._forget()
        self._load()

    def close(self) -> None:
        """Let go of the cache."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if self._temporary is not None:
            self._temporary.cleanup()

    @property
    def backlog_bytes(self) -> int:
        """What is still to be read."""
        return sum(max(0, _size(tail.path) - tail.offset) for tail in self._tails.values())

    def refresh(self) -> bool:
        """Read on in every file, some megabytes at most.

        Returns:
            Whether anything is new, so that there may be more.

        Raises:
            OSError: if a file cannot be read, or the cache not written; the next call begins anew.
        """
        if not self.folder.exists():
            was_deleted, self.is_deleted = self.is_deleted, True
            return not was_deleted
        if self.is_deleted:  # and made anew: another run
            self.close()
            self.cache, self.is_deleted = self._take_cache(), False
            self._forget()
        try:
            is_news = [self._refresh_records(kind) for kind in KINDS] + [self._refresh_events()]
            if any(is_news):
                self._save()
        except OSError:
            if not self.folder.exists():
                self.is_deleted = True
                return True
            self._forget()  # the columns may be torn
            raise
        return any(is_news)

    def tables(self, kind: Kind) -> list[Table]:
        """The tables of a kind, in the order in which they first appeared."""
        return [table for key, table in self._tables.items() if key.file == kind.file]

    def config(self) -> dict[str, str]:
        """Options of config.yaml by dotted name; empty where there is none, or none that can be read."""
        path = self.folder / "config.yaml"
        try:
            modified = path.stat().st_mtime_ns
            if modified != self._config[0]:
                loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where it is there
                self._config = (modified, dict(_flat(yaml.load(path.read_text(encoding="utf-8"), loader))))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, yaml.YAMLError) as error:
            return {"config.yaml": f"cannot be read: {str(error).splitlines()[0]}"}
        return self._config[1]

    def _refresh_records(self, kind: Kind) -> bool:
        tail = self._tails[kind.file]
        try:
            read = tail.read()
            self.written_at = max(self.written_at, tail.path.stat().st_mtime)
        except FileNotFoundError:
            return False  # not there yet, or deleted: what was read stays
        if read.starts_anew:
            self._drop(kind.file)
        if not read.lines:
            return read.starts_anew
        parsed = parse_lines(read.lines, kind, first_line=self._num_lines.get(kind.file, 0) + 1)
        self._num_lines[kind.file] = self._num_lines.get(kind.file, 0) + len(read.lines)
        for key, columns in parsed.rows.items():
            if key not in self._tables:
                self._tables[key] = Table(self.cache / _folder_name(key), key)
            self._tables[key].append(columns, parsed.last[key])
        self._note(kind.file, parsed.problems)
        if parsed.newest_schema > kind.schema:
            self.notes[kind.file] = (
                f"{kind.file} has schema {parsed.newest_schema}, known here is {kind.schema}: fields that are new are "
                "not shown; update cpc to see them"
            )
        return True

    def _refresh_events(self) -> bool:
        tail = self._tails[EVENTS_FILE]
        try:
            read = tail.read()
        except FileNotFoundError:
            return False
        if read.starts_anew:
            self._drop(EVENTS_FILE)
        problems = []
        for line in read.lines:
            try:
                event = json.loads(line)
                self.events.append({name: event[name] for name in ("step", "time_unix_seconds", "event", "message")})
            except (ValueError, KeyError, TypeError) as error:
                problems.append(f"{EVENTS_FILE}: {type(error).__name__}: {error}")
        self._note(EVENTS_FILE, problems)
        return bool(read.lines) or read.starts_anew

    def _note(self, file: str, problems: list[str]) -> None:
        self.num_problems[file] = self.num_problems.get(file, 0) + len(problems)
        self.problems += [problem for problem in problems if len(self.problems) < NUM_PROBLEMS_KEPT]

    def _drop(self, file: str) -> None:
        """Forget what came from a file that was replaced or cut."""
        for key in [key for key in self._tables if key.file == file]:
            shutil.rmtree(self._tables.pop(key).folder, ignore_errors=True)
        if file == EVENTS_FILE:
            self.events = []
        self.problems = [problem for problem in self.problems if not problem.startswith(file)]
        for per_file in (self._num_lines, self.num_problems, self.notes):
            per_file.pop(file, None)

    def _forget(self) -> None:
        self._tables: dict[Key, Table] = {}
        self._tails = {file: Tail(self.folder / file) for file in (*(kind.file for kind in KINDS), EVENTS_FILE)}
        self._num_lines: dict[str, int] = {}
        self.events, self.problems, self.num_problems, self.notes = [], [], {}, {}

    def _take_cache(self) -> Path:
        cache = self.folder / CACHE_FOLDER
        try:
            cache.mkdir(exist_ok=True)
            lock = os.open(cache / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError:
            return self._take_temporary()
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # another monitor's
            os.close(lock)
            return self._take_temporary()
        self._lock = lock
        return cache

    def _take_temporary(self) -> Path:
        self._temporary = tempfile.TemporaryDirectory(prefix="cpc_monitor_")
        return Path(self._temporary.name)

    def _load(self) -> None:
        """Take the index of an earlier monitor; whatever is wrong with it, the files are read again."""
        try:
            index = json.loads((self.cache / "index.json").read_text(encoding="utf-8"))
            if index["format"] != CACHE_FORMAT:
                raise ValueError("written by another version")
            for file, (offset, mark, num_lines) in index["files"].items():
                self._tails[file] = Tail(self.folder / file, offset, mark)
                self._num_lines[file] = num_lines
            for file, names, steps, directions, num_rows, last in index["tables"]:
                key = Key(file, tuple(names), tuple(steps), tuple(directions))
                self._tables[key] = Table(self.cache / _folder_name(key), key, num_rows, last)
            self.events, self.problems = index["events"], index["problems"]
            self.num_problems, self.notes = index["num_problems"], index["notes"]
        except (OSError, ValueError, KeyError, TypeError):
            self._forget()
            for folder in self.cache.glob("columns_*"):
                shutil.rmtree(folder, ignore_errors=True)

    def _save(self) -> None:
        files = {file: (tail.offset, tail.mark, self._num_lines.get(file, 0)) for file, tail in self._tails.items()}
        tables = [(*key, table.num_rows, table.last) for key, table in self._tables.items()]
        index = {"format": CACHE_FORMAT, "files": files, "tables": tables, "events": self.events}
        index |= {"problems": self.problems, "num_problems": self.num_problems, "notes": self.notes}
        with write_atomically(self.cache / "index.json") as new:
            new.write_text(json.dumps(index), encoding="utf-8")


def index_run(folder: Path) -> None:
    """Bring a run's cache up to date, in a process of its own: `Run` finds it done."""
    gc.disable()  # records hold no cycles, and looking for some takes a third of the time
    run = Run(folder, folder.name)
    while run.refresh():
        pass
    run.close()


def _folder_name(key: Key) -> str:
    return "columns_" + hashlib.sha256(repr(tuple(key)).encode()).hexdigest()[:16]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _flat(config: Any, prefix: str = "") -> list[tuple[str, str]]:
    """(dotted name, value) of every option; `init_args` and `class_path` go without saying."""
    if not isinstance(config, dict) or not config:
        return [(prefix or "config", "null" if config is None else str(config))]
    flat = []
    for name, value in config.items():
        inner = prefix if name in ("init_args", "class_path") else f"{prefix}.{name}".lstrip(".")
        flat += _flat(value, inner)
    return flat
