"""The headers of recordings, for the index of a folder."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cpc.data.signals.folder import LABEL_COLUMNS, OPENERS
from cpc.data.signals.listing import ReadOptions


def header_errors(files: Sequence[Path], num_workers: int) -> list[str | None]:
    """Return, for each file, the message of the error if its header cannot be read; the samples are not decoded."""
    options = ReadOptions(None, [0], LABEL_COLUMNS)  # channels of other rates are no error

    def error(file: Path) -> str | None:
        try:
            OPENERS[file.suffix.lower()](file, options)
        except (ValueError, OSError) as problem:
            return str(problem)
        return None

    with ThreadPoolExecutor(num_workers) as threads:
        return list(threads.map(error, files))
