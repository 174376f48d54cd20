"""The runs below some folders, found and followed while they come, grow and go."""

import contextlib
import itertools
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import TypeVar

from cpc.monitor import cache
from cpc.monitor.finder import run_folders
from cpc.monitor.text import replace_surrogates
from cpc.monitor.run import Run
from cpc.monitor.tail import CHUNK_BYTES
from cpc.monitor.view import RUN_COLOURS

POLL_SECONDS = 0.25
FIND_SECONDS = 3.0
DELETED_SECONDS = 86_400.0  # for which a run whose folder is gone stays on the page
_RETRY_SECONDS = 10.0
_MAX_PROCESSES = 8
_MUCH_BYTES = 200 << 20  # of new runs: with fewer, processes take longer to start than they save
_SEARCH_SHARE = 0.05  # of the time at most: a walk over a large or slow disk comes less often

Found = TypeVar("Found")


class Library:
    """Runs by name; whoever reads them holds `lock`.

    Nothing that goes wrong with one run ends the following of the others: the run says what it is.

    Args:
        roots: run folders, or folders somewhere below which runs lie (six levels down at most).

    Raises:
        ValueError: if one of them is not a folder.
    """

    def __init__(self, roots: Sequence[Path]) -> None:
        for root in roots:
            if not root.is_dir():
                raise ValueError(f"{replace_surrogates(root)} is not a folder: name run folders, or folders that hold some")
        self.roots = [root.resolve() for root in roots]
        self.runs: dict[str, Run] = {}
        self._colour_indices: dict[str, int] = {}  # by name, in the palette: a run that leaves recolours no other
        # Counts what a reader might want to draw again; from where no earlier monitor, whose page is still open, was.
        self.revision = time.time_ns() // 1000
        self.error_message = ""  # what keeps it from looking for runs
        self.lock = threading.RLock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._find_at = 0.0
        self._readers: dict[str, Future[bytes]] = {}  # by name, runs that another process reads for now
        self._unsaved_names: set[str] = set()  # names of runs whose caches may be worth writing
        self._can_save = True

    @property
    def has_stopped(self) -> bool:
        """Whether nobody follows the runs any more, though nobody has closed the library."""
        return self._thread is not None and not self._thread.is_alive() and not self._stop.is_set()

    def start(self) -> None:
        """Follow in the background until `close`."""
        self._thread = threading.Thread(target=self._follow, name="cpc monitor", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop following, and keep what was read for the next monitor."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        for future in self._readers.values():
            future.cancel()
        for run in self.runs.values():
            if run.num_bytes_read != run.num_bytes_cached and run.name not in self._readers:
                self._save(run)

    def read_all(self) -> None:
        """Find the runs and read all that they hold."""
        self._find()
        while self._refresh() or self._readers:
            if self._readers:
                time.sleep(0.01)

    def skip_unreadable(self, runs: Sequence[Run], use: Callable[[Sequence[Run]], Found]) -> Found:
        """What `use` makes of runs; should it fail, what it makes of those that it can use. The others say why not."""
        try:
            return use(runs)
        except Exception:  # whatever a file may make of a run, the others stay on the page
            sound = []
            for run in runs:
                try:
                    use([run])
                    sound.append(run)
                except Exception as error:
                    run.error_message = run.error_message or _error_text("cannot be shown", error)
            return use(sound)

    def _follow(self) -> None:
        while not self._stop.is_set():
            if time.monotonic() >= self._find_at:
                try:
                    self._find()
                    error_message = ""
                except Exception as error:  # a page that stays open for days must not freeze without a word
                    error_message = _error_text("cpc monitor cannot look for runs", error)
                with self.lock:
                    self.revision += error_message != self.error_message
                    self.error_message = error_message
            if not self._refresh():
                self._stop.wait(POLL_SECONDS)

    def _refresh(self) -> bool:
        """Read on in every run, a little."""
        is_news = False
        for name, run in list(self.runs.items()):
            if self._stop.is_set() or run.retry_at > time.monotonic():
                continue
            reader = self._readers.get(name)
            if reader and not reader.done():
                continue
            with self.lock:
                try:
                    if reader:
                        del self._readers[name]
                        if reader.exception() is None:  # else the run is read here
                            cache.unpack_tables(reader.result(), run)
                    is_new = run.refresh() or run.retry_at > 0 or reader is not None
                    if is_new:
                        run.error_message, run.retry_at = "", 0.0
                except Exception as error:  # the other runs go on
                    before, run.error_message = run.error_message, _error_text("cannot be read", error)
                    is_new = run.error_message != before
                    run.retry_at = time.monotonic() + _RETRY_SECONDS
                if run.deleted_at is not None and time.monotonic() - run.deleted_at > DELETED_SECONDS:
                    del self.runs[name]
                    is_new = True
                is_news |= is_new
            if is_new:
                self._unsaved_names.add(name)
            elif name in self._unsaved_names:  # and it is read to its end
                self._unsaved_names.remove(name)
                if run.num_bytes_read > 1.1 * run.num_bytes_cached + CHUNK_BYTES:
                    self._save(run)
        with self.lock:  # once for all runs: the page draws no more often while many are read
            self.revision += is_news
        return is_news

    def _find(self) -> None:
        begun = time.monotonic()
        self._find_at = begun + FIND_SECONDS  # also if the search fails
        known = {run.folder for run in self.runs.values()}
        new: list[Run] = []
        for folder in run_folders(self.roots):
            if self._stop.is_set():
                return
            if folder not in known:
                name = self._name(folder)
                place = self._colour_indices.setdefault(name, len(self._colour_indices))
                new.append(Run(folder, name, RUN_COLOURS[place % len(RUN_COLOURS)]))
                cache.load(new[-1])
                with self.lock:
                    self.runs[name] = new[-1]
                    self.revision += 1
        self._start_readers([run for run in new if run.backlog_bytes > CHUNK_BYTES])
        self._find_at = time.monotonic() + max(FIND_SECONDS, (time.monotonic() - begun) / _SEARCH_SHARE)

    def _start_readers(self, runs: Sequence[Run]) -> None:
        """Let a process per core parse runs, where that is worth it; `_refresh` takes what they have read."""
        num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        if min(len(runs), num_cores) < 2 or sum(run.backlog_bytes for run in runs) < _MUCH_BYTES:
            return
        num_processes = min(len(runs), num_cores, _MAX_PROCESSES)
        processes = ProcessPoolExecutor(num_processes, multiprocessing.get_context("spawn"))
        with contextlib.suppress(OSError):  # no memory for a process: `_refresh` reads the others
            for run in runs:
                self._readers[run.name] = processes.submit(cache.read_run, run.folder)
        processes.shutdown(wait=False)  # they end when all is read

    def _save(self, run: Run) -> None:
        if run.is_deleted or not self._can_save:
            return
        try:
            cache.save(run)
        except OSError as error:
            self._can_save = False
            print(f"cpc monitor keeps no cache, each start reads all records: {replace_surrogates(error)}", file=sys.stderr)

    def _name(self, folder: Path) -> str:
        """Short, and its own: below its root; with the root's name, in full, or numbered, where that is taken."""
        root = max((root for root in self.roots if folder.is_relative_to(root)), key=lambda root: len(root.parts))
        below = folder.relative_to(root).as_posix()
        plain = [root.name, str(folder)] if below == "." else [below, f"{root.name}/{below}", str(folder)]
        numbered = (f"{folder} ({number})" for number in itertools.count(2))  # names that are not UTF-8 may look alike
        candidates = map(replace_surrogates, itertools.chain(plain, numbered))
        return next(name for name in candidates if name not in self.runs)


def _error_text(what: str, error: Exception) -> str:
    return replace_surrogates(f"{what}: {type(error).__name__}: {error}")
