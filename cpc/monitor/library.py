"""The runs below some folders, found and followed while they come, grow and go."""

import contextlib
import itertools
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import TypeVar

from cpc.monitor.finder import run_folders
from cpc.monitor.legible import legible
from cpc.monitor.run import Run, index_run

POLL_SECONDS = 0.25
FIND_SECONDS = 3.0
DELETED_SECONDS = 86_400.0  # for which a run whose folder is gone stays on the page
MAX_PROCESSES = 8
_MUCH_BYTES = 16 << 20  # a backlog worth processes of its own
_RETRY_SECONDS = 10.0
_OWN = "cpc monitor"  # whose own trouble it is, among those of the runs
_SEARCH_SHARE = 0.05  # of the time at most: a walk over a large or slow disk comes less often

Found = TypeVar("Found")


class Library:
    """Runs by name; whoever reads them holds `lock`.

    Nothing that goes wrong with one run ends the following of the others: it stands in `troubles`.

    Args:
        roots: run folders, or folders somewhere below which runs lie (six levels down at most).

    Raises:
        ValueError: if one of them is no folder.
    """

    def __init__(self, roots: Sequence[Path]) -> None:
        for root in roots:
            if not root.is_dir():
                raise ValueError(f"{legible(root)} is not a folder: name run folders, or folders that hold some")
        self.roots = [root.resolve() for root in roots]
        self.runs: dict[str, Run] = {}
        self._places: dict[str, int] = {}  # of each name in the palette: a run that leaves recolours no other
        # Counts what a reader might want to draw again; from where no earlier monitor, whose page is still open, was.
        self.revision = time.time_ns() // 1000
        self.progress = ""  # of a long first index, in words
        self.troubles: dict[str, str] = {}  # by run, or folder that could not become one: what keeps it from being read
        self.unshown: dict[str, str] = {}  # by run: what keeps it from being shown, until it has news
        self.lock = threading.RLock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._retry_at: dict[str, float] = {}
        self._find_at = 0.0

    @property
    def has_stopped(self) -> bool:
        """Whether nobody follows the runs any more, though nobody has closed the library."""
        return self._thread is not None and not self._thread.is_alive() and not self._stop.is_set()

    def start(self) -> None:
        """Follow in the background until `close`."""
        self._thread = threading.Thread(target=self._follow, name=_OWN, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop following, and let go of all caches."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        with self.lock:
            for run in self.runs.values():
                run.close()

    def read_all(self, tell: Callable[[str], None] = lambda progress: None) -> None:
        """Find the runs and read all that they hold.

        Args:
            tell: called with the progress in words.
        """
        self._find(tell)
        while self._refresh():
            pass

    def of_sound(self, runs: Sequence[Run], use: Callable[[Sequence[Run]], Found]) -> Found:
        """What comes of using runs; should that fail, of those that can be used, while `unshown` tells of the others.

        Args:
            runs: of this library.
            use: of any of the runs.
        """
        try:
            return use(runs)
        except Exception:  # whatever a file may make of a run, the others stay on the page
            sound = []
            for run in runs:
                try:
                    use([run])
                    sound.append(run)
                except Exception as error:
                    self.unshown[run.name] = legible(f"cannot be shown: {type(error).__name__}: {error}")
            return use(sound)

    def _follow(self) -> None:
        while not self._stop.is_set():
            if time.monotonic() >= self._find_at:
                try:
                    self._find(self._set_progress)
                    self.troubles.pop(_OWN, None)
                except Exception as error:  # a page that stays open for days must not freeze without a word
                    self._tell_trouble(_OWN, "cannot look for runs", error)
            if not self._refresh():
                self._stop.wait(POLL_SECONDS)

    def _refresh(self) -> bool:
        """Read on in every run, a little."""
        is_news = False
        for name, run in list(self.runs.items()):
            if self._stop.is_set() or self._retry_at.get(name, 0.0) > time.monotonic():
                continue
            with self.lock:
                is_new = False
                try:
                    is_new = run.refresh() or name in self.troubles
                    if is_new:
                        self.troubles.pop(name, None)
                        self.unshown.pop(name, None)
                except Exception as error:  # the other runs go on
                    self._tell_trouble(name, "cannot be read, or its columns not written", error)
                    self._retry_at[name] = time.monotonic() + _RETRY_SECONDS
                if run.deleted_at is not None and time.monotonic() - run.deleted_at > DELETED_SECONDS:
                    run.close()
                    for by_name in (self.runs, self.troubles, self.unshown, self._retry_at):
                        by_name.pop(name, None)
                    is_new = True
                self.revision += is_new
                is_news |= is_new
        return is_news

    def _find(self, tell: Callable[[str], None]) -> None:
        begun = time.monotonic()
        self._find_at = begun + FIND_SECONDS  # also if the search fails
        known = {run.folder for run in self.runs.values()}
        new = [folder for folder in run_folders(self.roots) if folder not in known]
        self._find_at = time.monotonic() + max(FIND_SECONDS, (time.monotonic() - begun) / _SEARCH_SHARE)
        with self.lock:
            for gone in self.troubles.keys() - self.runs.keys() - {_OWN, *map(self._name, new)}:
                del self.troubles[gone]
        if not new:
            return
        try:
            _index_in_parallel([folder for folder in new if _wants_a_process(folder)], tell, self._stop)
        except Exception as error:  # a killed process, or no memory for one: `refresh` reads what they have left
            tell(legible(f"indexing without processes of its own, which failed: {error}"))
        for number, folder in enumerate(new):
            if self._stop.is_set():
                return
            if len(new) > 20:
                tell(f"opening run {number + 1} of {len(new)}")
            name = self._name(folder)
            with self.lock:
                try:
                    self.runs[name] = Run(folder, name, self._places.setdefault(name, len(self._places)))
                    self.troubles.pop(name, None)
                    self.revision += 1
                except Exception as error:  # tried again by the next search
                    self._tell_trouble(name, "cannot be opened", error)
        tell("")

    def _tell_trouble(self, name: str, what: str, error: Exception) -> None:
        with self.lock:
            told = legible(f"{what}: {type(error).__name__}: {error}")
            self.revision += told != self.troubles.get(name)
            self.troubles[name] = told

    def _set_progress(self, progress: str) -> None:
        with self.lock:
            self.progress = progress
            self.revision += 1

    def _name(self, folder: Path) -> str:
        """Short, and its own: below its root; with the root's name, in full, or numbered, where that is taken."""
        root = max((root for root in self.roots if folder.is_relative_to(root)), key=lambda root: len(root.parts))
        below = folder.relative_to(root).as_posix()
        plain = [root.name, str(folder)] if below == "." else [below, f"{root.name}/{below}", str(folder)]
        numbered = (f"{folder} ({number})" for number in itertools.count(2))  # names that are not UTF-8 may look alike
        candidates = map(legible, itertools.chain(plain, numbered))
        return next(name for name in candidates if name not in self.runs)


def _wants_a_process(folder: Path) -> bool:
    try:
        with contextlib.closing(Run(folder, folder.name)) as run:
            # A process cannot leave temporary columns behind.
            return run.backlog_bytes > _MUCH_BYTES and not run.is_temporary
    except OSError:  # will be met again, and told
        return False


def _index_in_parallel(folders: list[Path], tell: Callable[[str], None], stop: threading.Event) -> None:
    """Parsing JSON is what takes the time: a process per processor."""
    if not folders:
        return
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ProcessPoolExecutor(
        min(len(folders), num_cores, MAX_PROCESSES), multiprocessing.get_context("spawn")
    ) as processes:
        futures: list[Future[None]] = [processes.submit(index_run, folder) for folder in folders]
        for number, future in enumerate(futures):
            tell(f"indexing run {number + 1} of {len(folders)}")
            while not future.done() and not stop.is_set():
                stop.wait(0.05)
            if stop.is_set():
                processes.shutdown(cancel_futures=True)
                return
            future.exception()  # of one run: `Run.refresh` will meet it again, and say so
