"""The lock of a run's folder."""

import fcntl
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def lock_run(folder: Path) -> Iterator[None]:
    """Keep a run's folder to this process while the block lasts: two would mix their records.

    The operating system releases the lock when the process ends in any way; the file `lock` names the process. The lock
    is not `flock`, which loader workers inherit and hold for seconds when training is killed.

    Raises:
        ValueError: if another process holds the lock; the message names its number and machine.
        OSError: if the folder cannot be written to.
    """
    path = folder / "lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise OSError(f"--run_dir {folder} cannot be written to: {error}") from error
    try:
        is_locked = True
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            holder = os.pread(file, 1000, 0).decode() or "another process"
            raise ValueError(
                f"{holder} is training in {folder}: wait until it ends, stop it, or name another --run_dir"
            ) from error
        except OSError as error:
            is_locked = False
            print(f"{folder} lies where files cannot be locked ({error}): start no second run in it", file=sys.stderr)
        if not os.fstat(file).st_nlink:  # removed by its holder between opening and locking
            raise ValueError(f"another process has just ended its training in {folder}: start again")
        if (former := os.pread(file, 1000, 0).decode()) and is_locked:
            print(f"{former} was training in {folder} and crashed; taking over its stale lock", file=sys.stderr)
        holder = f"process {os.getpid()} on {socket.gethostname()}, begun at {time.strftime('%Y-%m-%d %H:%M:%S')},"
        os.ftruncate(file, 0)
        os.pwrite(file, holder.encode(), 0)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            with suppress(OSError):  # a run has begun
                folder.rmdir()
    finally:
        os.close(file)
