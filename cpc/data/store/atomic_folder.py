"""Folders that appear at once: a reader, or a process killed in the middle, finds the whole folder or none."""

import fcntl
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cpc.data.store.atomic import named

_ABANDONED_AFTER_SECONDS = 3600


def build_once(folder: Path, is_complete: Callable[[Path], bool], build: Callable[[], None]) -> None:
    """Call `build` unless the folder is complete; of several processes one builds, and the others wait for it.

    If it fails or is killed, the next one tries. Where files cannot be locked, each builds.

    Args:
        folder: that `build` makes, by `build_atomically`.
        is_complete: whether a folder is what it makes.
        build: writes it.
    """
    if not is_complete(folder):
        with _alone(folder):
            if not is_complete(folder):
                build()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Holds a lock of the system, which ends with the process, however that ends."""
    path = folder.with_name(f"{folder.name}.lock")
    with ExitStack() as held:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = held.enter_context(path.open("w"))
            held.callback(path.unlink, missing_ok=True)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print(f"waiting for another process that makes {folder}", file=sys.stderr)
                fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:  # without a lock work is done twice; a place that cannot be written is named by its writer
            pass
        yield


@contextmanager
def build_atomically(folder: Path, is_complete: Callable[[Path], bool], option: str | None = None) -> Iterator[Path]:
    """A folder beside `folder` to write files to; it becomes `folder` when the block ends, and vanishes if it fails.

    Several processes may build one folder at a time: the first one wins, the others find it there (`build_once` lets
    them wait). A kill -9 leaves `<folder>.partial-*` behind, which is removed by the next call when nothing has been
    written to it for an hour.

    Args:
        folder: where it shall be; an incomplete one that is there already is replaced.
        is_complete: whether a folder is what the block would write.
        option: the caller's argument that names another place, for the error message.

    Raises:
        OSError: if the place cannot be written; `folder` stays as it was.
    """
    unfinished = folder.with_name(f"{folder.name}.partial-{secrets.token_hex(4)}")
    try:
        unfinished.mkdir(parents=True)
    except OSError as error:
        reason = f"{error.strerror}: nothing can be written here; name another place"
        reason += f" with `{option}`" if option else ""
        raise OSError(error.errno, reason, str(folder.parent)) from error
    try:
        _remove_abandoned(folder)
        with named(folder):
            yield unfinished
        _move(unfinished, folder, is_complete)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _move(unfinished: Path, folder: Path, is_complete: Callable[[Path], bool]) -> None:
    for path in filter(Path.is_file, unfinished.iterdir()):
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
    if folder.exists() and not is_complete(folder):
        shutil.rmtree(folder)
    try:
        unfinished.rename(folder)
    except OSError:
        if not is_complete(folder):  # if it is, another process was faster
            raise


def _remove_abandoned(folder: Path) -> None:
    """Removes what a killed process left of this folder; a living one writes all the time."""
    for leftover in folder.parent.glob(f"{folder.name}.partial-*"):
        try:
            last_written = max(path.stat().st_mtime for path in (leftover, *leftover.iterdir()))
        except FileNotFoundError:  # finished just now
            continue
        if last_written < time.time() - _ABANDONED_AFTER_SECONDS:
            shutil.rmtree(leftover, ignore_errors=True)
