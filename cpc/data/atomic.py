"""Files that are replaced at once: a reader, or a process killed in the middle, finds the old one or the new one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def write_atomically(path: str | Path) -> Iterator[Path]:
    """A place beside `path` to write to; it becomes `path` when the block ends, and vanishes if the block fails.

    A kill -9 may leave that place, `<path>.new`, behind: the next write takes it over.

    Example:
        >>> with write_atomically("report.json") as new:
        ...     new.write_text("{}")
    """
    path = Path(path)
    new = path.with_name(f"{path.name}.new")
    try:
        yield new
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)
