"""Atomic writing: readers see either the old file or the new file, even if the writer is killed."""

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cpc.config.argument_rules import plain


@contextmanager
def write_atomically(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path; its file replaces `path` when the block ends, and is removed if the block fails.

    The folder is created if it does not exist. After a kill -9 the temporary file `<path>.new` may remain; the next
    write replaces it.

    Example:
        >>> with write_atomically("report.json") as new:
        ...     new.write_text("{}")
    """
    path = Path(path)
    new = path.with_name(f"{path.name}.new")
    try:
        with named(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield new
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


def json_text(content: Any, **options: Any) -> str:
    """Return content as strict JSON, without NaN and infinity, which other languages cannot read.

    Numbers and arrays of numpy are written like those of Python.

    Raises:
        ValueError: if a number is not finite; pass the content through `finite` first.
    """
    return json.dumps(content, allow_nan=False, default=_written, **options)


def _written(value: Any) -> Any:
    if (written := plain(value)) is value:
        raise TypeError(f"{type(value).__name__} is not JSON serializable")
    return written


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Add the path to an OSError without a path, such as the error of a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_json(content: Mapping[str, Any], path: str | Path) -> None:
    """Replace a JSON file, as `write_atomically` does.

    Raises:
        ValueError: if a number is not finite, which JSON does not allow; pass the content through `finite` first.
    """
    with write_atomically(path) as new:
        new.write_text(json_text(content, indent=2) + "\n", encoding="utf-8")


def finite(content: Any) -> Any:
    """Return the same dicts, lists and values, with None for each number that is not finite."""
    if isinstance(content, Mapping):
        return {key: finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
