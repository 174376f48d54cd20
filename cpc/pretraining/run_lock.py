"""The lock of a run's folder."""

import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout


@contextmanager
def lock_run(folder: Path) -> Iterator[None]:
    """Lock a run's folder for this process while the block runs, since two processes would mix their records.

    The operating system releases the lock when the process ends, however it ends. The file `lock` names the process.
    """
    path = folder / "lock"
    lock = FileLock(path, fallback_to_soft=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        raise OSError(f"--run_dir {folder} cannot be written to: {error}") from error
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        holder = "another process"
        with suppress(FileNotFoundError):  # the process that held the lock has just ended
            holder = path.read_text() or holder
        raise ValueError(f"{holder} is training in {folder}: wait, or name another --run_dir") from error
    except OSError as error:
        print(f"{folder} is on a file system without locks ({error}): do not start a second run in it", file=sys.stderr)
    if lock.is_locked and (former := path.read_text()):
        print(f"{former} was training in {folder} and crashed; taking over its stale lock", file=sys.stderr)
    started = time.strftime("%Y-%m-%d %H:%M:%S")
    path.write_text(f"process {os.getpid()} on {socket.gethostname()}, begun at {started},")
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        with suppress(OSError):  # a run has begun
            folder.rmdir()
        lock.release()
