"""The runs below some folders, found and followed while they come, grow and go."""

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path

from cpc.monitor.kinds import EVENTS_FILE, KINDS
from cpc.monitor.run import Run, index_run

POLL_SECONDS = 0.5
FIND_SECONDS = 3.0
MAX_DEPTH = 6
_MUCH_BYTES = 16 << 20  # a backlog worth processes of its own
_RETRY_SECONDS = 10.0
_MARKS_OF_A_RUN = (*(kind.file for kind in KINDS), EVENTS_FILE)


class Library:
    """Runs by name; whoever reads them holds `lock`.

    Args:
        roots: run folders, or folders somewhere below which runs lie (six levels down at most).

    Raises:
        ValueError: if one of them is no folder.
    """

    def __init__(self, roots: Sequence[Path]) -> None:
        for root in roots:
            if not root.is_dir():
                raise ValueError(f"{root} is not a folder: name run folders, or folders that hold some")
        self.roots = [root.resolve() for root in roots]
        self.runs: dict[str, Run] = {}
        # Counts what a reader might want to draw again; from where no earlier monitor, whose page is still open, was.
        self.revision = time.time_ns() // 1000
        self.progress = ""  # of a long first index, in words
        self.troubles: dict[str, str] = {}  # by run: what keeps it from being read
        self.lock = threading.RLock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._folders: set[Path] = set()
        self._retry_at: dict[str, float] = {}

    def start(self) -> None:
        """Follow in the background until `close`."""
        self._thread = threading.Thread(target=self._follow, name="cpc monitor", daemon=True)
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

    def _follow(self) -> None:
        found_at = -FIND_SECONDS
        while not self._stop.is_set():
            if time.monotonic() - found_at >= FIND_SECONDS:
                self._find(self._set_progress)
                found_at = time.monotonic()
            if not self._refresh():
                self._stop.wait(POLL_SECONDS)

    def _refresh(self) -> bool:
        """Read on in every run, a little."""
        is_news = False
        for name, run in list(self.runs.items()):
            if self._stop.is_set() or self._retry_at.get(name, 0.0) > time.monotonic():
                continue
            with self.lock:
                try:
                    is_new = run.refresh()
                    is_new |= self.troubles.pop(name, None) is not None
                except OSError as error:
                    self.troubles[name] = f"cannot be read or its cache not written: {error}"
                    self._retry_at[name] = time.monotonic() + _RETRY_SECONDS
                    is_new = True
                self.revision += is_new
                is_news |= is_new
        return is_news

    def _find(self, tell: Callable[[str], None]) -> None:
        new = [folder for root in self.roots for folder in _run_folders(root) if folder not in self._folders]
        new = list(dict.fromkeys(new))
        if not new:
            return
        self._folders.update(new)
        _index_in_parallel([folder for folder in new if _backlog_bytes(folder) > _MUCH_BYTES], tell, self._stop)
        for number, folder in enumerate(new):
            if self._stop.is_set():
                return
            if len(new) > 20:
                tell(f"opening run {number + 1} of {len(new)}")
            run = Run(folder, self._name(folder))
            with self.lock:
                self.runs[run.name] = run
                self.revision += 1
        tell("")

    def _set_progress(self, progress: str) -> None:
        with self.lock:
            self.progress = progress
            self.revision += 1

    def _name(self, folder: Path) -> str:
        """Short, and its own: below its root; with the root's name, or in full, where that is taken."""
        root = max((root for root in self.roots if folder.is_relative_to(root)), key=lambda root: len(root.parts))
        below = folder.relative_to(root).as_posix()
        candidates = [root.name] if below == "." else [below, f"{root.name}/{below}"]
        return next((name for name in candidates if name not in self.runs), str(folder))


def _run_folders(root: Path) -> Iterator[Path]:
    """Folders with records; what lies within one is its own affair."""
    for path, folders, files in os.walk(root):
        if any(mark in files for mark in _MARKS_OF_A_RUN):
            folders.clear()
            yield Path(path)
        elif len(Path(path).relative_to(root).parts) >= MAX_DEPTH:
            folders.clear()
        folders[:] = sorted(folder for folder in folders if not folder.startswith("."))


def _backlog_bytes(folder: Path) -> int:
    run = Run(folder, folder.name)
    backlog = run.backlog_bytes
    run.close()
    return backlog


def _index_in_parallel(folders: list[Path], tell: Callable[[str], None], stop: threading.Event) -> None:
    """Parsing JSON is what takes the time: a process per processor."""
    if not folders:
        return
    num_processes = min(len(folders), os.cpu_count() or 1)
    with ProcessPoolExecutor(num_processes, multiprocessing.get_context("spawn")) as processes:
        futures: list[Future[None]] = [processes.submit(index_run, folder) for folder in folders]
        for number, future in enumerate(futures):
            tell(f"indexing run {number + 1} of {len(folders)}")
            while not future.done() and not stop.is_set():
                stop.wait(0.05)
            if stop.is_set():
                processes.shutdown(cancel_futures=True)
                return
            if isinstance(future.exception(), OSError):
                continue  # `Run.refresh` will meet it again, and say so
            future.result()
