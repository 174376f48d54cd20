"""The runs below some folders: a search for runs, and a reader of their records while the files grow."""

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from cpc.monitor.record_types import RECORD_TYPES
from cpc.monitor.run import Run
from cpc.monitor.table import replace_surrogates
from cpc.monitor.view import RUN_COLOURS

POLL_SECONDS = 0.25
FIND_SECONDS = 3.0
DELETED_SECONDS = 86_400.0  # how long a run stays on the page after its folder was deleted
MAX_DEPTH = 6
Result = TypeVar("Result")
_RECORD_FILES = {record_type.file for record_type in RECORD_TYPES}
_SEARCH_SHARE = 0.05  # largest share of the time for searching; on a large or slow disk searches are less frequent


class Library:
    """Runs by name; a thread that reads them must hold `lock`.

    An error in one run does not stop the others; the error is stored in the `error_message` of the run.

    Args:
        roots: run folders, or folders that contain runs, six levels down at most.
    """

    def __init__(self, roots: Sequence[Path]) -> None:
        for root in roots:
            if not root.is_dir():
                raise ValueError(f"{replace_surrogates(root)} is not a folder of runs")
        self.roots = [root.resolve() for root in roots]
        self.runs: dict[str, Run] = {}
        self._colour_indices: dict[str, int] = {}  # by name; kept, so that deleted runs do not change colours
        # Counts changes of the runs. It starts at the clock's time, so that a page of an earlier monitor is outdated.
        self.revision = time.time_ns() // 1000
        self.error_message = ""  # why the last search for runs failed
        self.lock = threading.RLock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="cpc monitor", daemon=True)
        self._find_at = 0.0

    def start(self) -> None:
        """Read the runs in a background thread until `close`."""
        self._thread.start()

    def close(self) -> None:
        """Stop the background thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def read_all(self) -> None:
        """Find the runs and read all their records."""
        self._find()
        while self._refresh():
            pass

    def skip_unreadable(self, runs: Sequence[Run], use: Callable[[Sequence[Run]], Result]) -> Result:
        """Return `use(runs)` without the runs for which it raises, and set their `error_message`, unless all raise."""
        try:
            return use(runs)
        except Exception:  # whatever the files of one run contain, all other runs stay on the page
            errors = {}
            for run in runs:
                try:
                    use([run])
                except Exception as error:
                    errors[run] = _error_text("cannot be shown", error)
            if len(errors) == len(runs) > 1:
                raise
            for run, text in errors.items():
                run.error_message = run.error_message or text
            return use([run for run in runs if run not in errors])

    def _follow(self) -> None:
        while not self._stop.is_set():
            if time.monotonic() >= self._find_at:
                error_message = ""
                try:
                    self._find()
                except Exception as error:  # the page must report why it no longer shows new runs
                    error_message = _error_text("cpc monitor cannot look for runs", error)
                with self.lock:
                    self.revision += error_message != self.error_message
                    self.error_message = error_message
            if not self._refresh():
                self._stop.wait(POLL_SECONDS)

    def _refresh(self) -> bool:
        """Read a few megabytes of every run's files, and return whether anything changed."""
        has_changed = False
        for name, run in list(self.runs.items()):
            if self._stop.is_set():
                return False
            with self.lock:
                before, run.error_message = run.error_message, ""
                try:
                    has_changed |= run.refresh()
                except Exception as error:  # go on with the other runs
                    run.error_message = _error_text("cannot be read", error)
                has_changed |= run.error_message != before
                if run.deleted_at is not None and time.monotonic() - run.deleted_at > DELETED_SECONDS:
                    del self.runs[name]
                    has_changed = True
        with self.lock:  # once for all runs, so that the page is not updated once per run
            self.revision += has_changed
        return has_changed

    def _find(self) -> None:
        begun = time.monotonic()
        self._find_at = begun + FIND_SECONDS  # also if the search fails
        known = {run.folder for run in self.runs.values()}
        for folder in run_folders(self.roots):
            if folder not in known:
                name = self._name(folder)
                index = self._colour_indices.setdefault(name, len(self._colour_indices))
                with self.lock:
                    self.runs[name] = Run(folder, name, RUN_COLOURS[index % len(RUN_COLOURS)])
                    self.revision += 1
        self._find_at = time.monotonic() + max(FIND_SECONDS, (time.monotonic() - begun) / _SEARCH_SHARE)

    def _name(self, folder: Path) -> str:
        """Return the shortest unused name: the path below the root, with the root, in full, or numbered."""
        root = max((root for root in self.roots if folder.is_relative_to(root)), key=lambda root: len(root.parts))
        below = folder.relative_to(root).as_posix()
        plain = [root.name, str(folder)] if below == "." else [below, f"{root.name}/{below}", str(folder)]
        numbered = (f"{folder} ({index})" for index in itertools.count(2))  # paths that are not UTF-8 may become equal
        candidates = map(replace_surrogates, itertools.chain(plain, numbered))
        return next(name for name in candidates if name not in self.runs)


def run_folders(roots: Sequence[Path]) -> Iterator[Path]:
    """Yield every folder with records once, at most six levels below a root.

    The search does not enter the folder of a run, unless the folder is a root, since a stray file of records in a root
    must not hide the runs below it. In a folder links come last, so `latest -> run7` is not a second run.
    """
    seen: set[tuple[int, int]] = set()
    for root in roots:
        for path, folders, files in os.walk(root, followlinks=True):  # folders that cannot be read are left out
            state, depth = os.stat(path), len(Path(path).relative_to(root).parts)
            is_known, is_run = (state.st_dev, state.st_ino) in seen, not _RECORD_FILES.isdisjoint(files)
            seen.add((state.st_dev, state.st_ino))
            if is_run and not is_known:
                yield Path(path)
            if is_known or depth >= MAX_DEPTH or (is_run and depth):
                folders.clear()
            visible = [name for name in folders if not name.startswith(".")]
            folders[:] = sorted(visible, key=lambda name: (os.path.islink(os.path.join(path, name)), name))


def _error_text(what: str, error: Exception) -> str:
    return replace_surrogates(f"{what}: {type(error).__name__}: {error}")
