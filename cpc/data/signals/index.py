"""The recordings of signals below a folder, for its index."""

from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cpc.data.signals.folder import INTERVALS_NAME, LABEL_COLUMNS, MANIFEST_NAME, OPENERS
from cpc.data.signals.listing import ReadOptions
from cpc.data.store.folders import find_files


def find_recordings(root: Path, more_suffixes: Collection[str] = (), tables: Collection[Path] = ()) -> list[str]:
    """Return the recordings below a folder, relative to it, without its tables `manifest.csv` and `labels.csv`.

    Args:
        root: the folder.
        more_suffixes: suffixes of other files to find.
        tables: other tables, which are no recordings even if they lie below the folder.

    Raises:
        ValueError: if there are none.
    """
    found = find_files(root, {*OPENERS, *more_suffixes}, "signal")
    below = [table.resolve() for table in tables if table.resolve().is_relative_to(root.resolve())]
    left_out = {MANIFEST_NAME, INTERVALS_NAME, *(table.relative_to(root.resolve()).as_posix() for table in below)}
    names = [name for name in found if name not in left_out]
    if not names:
        raise ValueError(f"no recordings below {root}, only tables of labels")
    return names


def header_errors(files: Sequence[Path], num_workers: int) -> list[str | None]:
    """Return, for each file, the message of the error if its header cannot be read; the samples are not decoded."""
    options = ReadOptions(None, None, LABEL_COLUMNS)

    def error(file: Path) -> str | None:
        try:
            OPENERS[file.suffix.lower()](file, options)
        except (ValueError, OSError) as problem:
            return str(problem)
        return None

    with ThreadPoolExecutor(num_workers) as threads:
        return list(threads.map(error, files))
