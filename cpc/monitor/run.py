"""One run's folder as the monitor sees it: its tables, events and configuration, kept up with its files."""

import contextlib
import fcntl
import gc
import hashlib
import json
import math
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from cpc.data.store.atomic import write_atomically
from cpc.monitor.kinds import EVENTS_FILE, KINDS, Key, Kind, parse_event, parse_lines
from cpc.monitor.legible import legible
from cpc.monitor.table import Table
from cpc.monitor.tail import Tail
from cpc.monitor.view import RUN_COLOURS

CACHE_FOLDER = ".cpc_monitor"
CACHE_FORMAT = 3
NUM_PROBLEMS_KEPT = 5


class Run:
    """A run's records in columns, beside it in `.cpc_monitor`, brought up to date by `refresh`.

    Monitors of the same run share the columns: each takes a lock while it adds to them, and loads what another has
    added before. Where the folder cannot be written to, the columns go to a temporary folder. A file that cannot be
    read for a while keeps what it gave before.

    Args:
        folder: the run's folder.
        name: shown to the user.
        place: in the palette.

    Raises:
        OSError: if neither the folder nor a temporary one takes the columns.
    """

    def __init__(self, folder: Path, name: str, place: int = 0) -> None:
        self.folder = folder
        self.name = name
        self.colour = RUN_COLOURS[place % len(RUN_COLOURS)]
        self.deleted_at: float | None = None  # by time.monotonic, when that was seen
        self.changed_at: float | None = None  # by time.monotonic: the last write to a file of records
        self.events: list[dict[str, Any]]
        self.problems: list[str]  # the first few lines that could not be used, and why
        self.num_problems: dict[str, int]  # all of them, by file
        self.notes: dict[str, str]  # what to know about a file
        self.unreadable: dict[str, str]  # files that cannot be read for now, and why
        self._config: tuple[int, dict[str, str]] = (0, {})
        self._modified: dict[str, float] = {}
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._begin()

    @property
    def is_deleted(self) -> bool:
        """Whether the folder is gone."""
        return self.deleted_at is not None

    @property
    def is_temporary(self) -> bool:
        """Whether the columns go when this monitor does."""
        return self._temporary is not None

    def close(self) -> None:
        """Remove temporary columns."""
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    @property
    def backlog_bytes(self) -> int:
        """What is still to be read."""
        return sum(
            max(0, tail.path.stat().st_size - tail.offset) for tail in self._tails.values() if tail.path.exists()
        )

    def refresh(self) -> bool:
        """Read on in every file, some megabytes at most; what cannot be read is tried again by the next call.

        Returns:
            Whether anything is new, so that there may be more.

        Raises:
            OSError: if neither the cache nor a temporary folder takes the columns; what an earlier call read is kept.
        """
        if not self.folder.exists():
            was_deleted = self.is_deleted
            self.deleted_at = self.deleted_at or time.monotonic()
            return not was_deleted
        if self.is_deleted:  # another run in its place
            self.close()
            self._begin()
        try:
            with self._locked() as is_loaded:
                is_news = [self._refresh_file(file) for file in self._tails]
                if any(is_news):
                    self._save()
        except OSError as error:
            if self.folder.exists():
                self._fall_back(error)
            return True
        except Exception:
            self._load()
            raise
        return is_loaded or any(is_news)

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
        except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
            return {"config.yaml": legible(f"cannot be read: {str(error).splitlines()[0]}")}
        return self._config[1]

    def _refresh_file(self, file: str) -> bool:
        tail = self._tails[file]
        try:
            read = tail.read()
        except FileNotFoundError:
            return self.unreadable.pop(file, None) is not None  # not there yet, or deleted: what was read stays
        except OSError as error:
            told, self.unreadable[file] = self.unreadable.get(file), legible(f"{file} cannot be read: {error}")
            return told != self.unreadable[file]
        self._see_change(tail)
        is_news = self.unreadable.pop(file, None) is not None or read.starts_anew or bool(read.lines)
        if read.starts_anew:
            self._drop(file)
        if read.lines and file == EVENTS_FILE:
            self._add_events(read.lines)
        elif read.lines:
            self._add_records(read.lines, next(kind for kind in KINDS if kind.file == file))
        return is_news

    def _add_records(self, lines: list[bytes], kind: Kind) -> None:
        parsed = parse_lines(lines, kind, first_line=self._num_lines.get(kind.file, 0) + 1)
        self._num_lines[kind.file] = self._num_lines.get(kind.file, 0) + len(lines)
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

    def _add_events(self, lines: list[bytes]) -> None:
        problems = []
        for line in lines:
            try:
                self.events.append(parse_event(line))
            except ValueError as error:
                problems.append(str(error))
        self._note(EVENTS_FILE, problems)

    def _see_change(self, tail: Tail) -> None:
        """Clocks differ between machines: the file's is asked for its age once, then the own one counts."""
        former = self._modified.get(tail.path.name)
        if tail.modified_at == former:
            return
        age = max(0.0, time.time() - tail.modified_at) if former is None else 0.0
        self._modified[tail.path.name] = tail.modified_at
        self.changed_at = max(time.monotonic() - age, self.changed_at or -math.inf)

    def _note(self, file: str, problems: list[str]) -> None:
        self.num_problems[file] = self.num_problems.get(file, 0) + len(problems)
        self.problems = (self.problems + problems)[:NUM_PROBLEMS_KEPT]

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
        self.events, self.problems, self.num_problems, self.notes, self.unreadable = [], [], {}, {}, {}

    def _begin(self) -> None:
        self.deleted_at = None
        self.cache, self.where_columns_are = self.folder / CACHE_FOLDER, ""  # in words, unless beside the run
        self._forget()
        self._loaded: tuple[int, int] | None = None
        try:
            with self._locked():
                pass
        except OSError as error:
            self._fall_back(error)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[bool]:
        """Keep other monitors out; whether the index was another than that of the last time, and has been loaded."""
        if not self.cache.exists():
            self.cache.mkdir(exist_ok=True)  # not its parents: a run that was deleted must not come back
        with (self.cache / "lock").open("ab", buffering=0) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            is_other = self._index_state() != self._loaded
            if is_other:
                self._load()
            yield is_other

    def _index_state(self) -> tuple[int, int] | None:
        try:
            state = (self.cache / "index.json").stat()
        except FileNotFoundError:
            return None
        return state.st_ino, state.st_mtime_ns

    def _fall_back(self, error: OSError) -> None:
        """Go on from the last index, in a temporary folder if there is room; a full disk must not empty the page."""
        if self._temporary is None:
            with contextlib.suppress(OSError):
                new = tempfile.TemporaryDirectory(prefix="cpc_monitor_")
                try:
                    if self.cache.is_dir():
                        shutil.copytree(self.cache, new.name, dirs_exist_ok=True)
                except OSError:
                    new.cleanup()
                    raise
                self._temporary, self.cache = new, Path(new.name)
                self.where_columns_are = legible(f"indexed for as long as this monitor runs, in {new.name}: {error}")
                self._load()
                return
        self._load()
        raise error

    def _load(self) -> None:
        """Take the last index; whatever is wrong with it, the files are read again."""
        self._forget()
        self._loaded = self._index_state()
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
        self._loaded = self._index_state()


def index_run(folder: Path) -> None:
    """Bring a run's cache up to date, in a process of its own: `Run` finds it done."""
    gc.disable()  # records hold no cycles, and looking for some takes a third of the time
    run = Run(folder, folder.name)
    while run.refresh():
        pass
    run.close()


def _folder_name(key: Key) -> str:
    return "columns_" + hashlib.sha256(repr(tuple(key)).encode()).hexdigest()[:16]


def _flat(config: Any, prefix: str = "") -> list[tuple[str, str]]:
    """(dotted name, value) of every option; `init_args` and `class_path` go without saying."""
    if not isinstance(config, dict) or not config:
        return [(legible(prefix or "config"), "null" if config is None else legible(config))]
    flat = []
    for name, value in config.items():
        inner = prefix if name in ("init_args", "class_path") else f"{prefix}.{name}".lstrip(".")
        flat += _flat(value, inner)
    return flat
