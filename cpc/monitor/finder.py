"""The search for run folders below some roots."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from cpc.monitor.record_types import RECORD_TYPES

MAX_DEPTH = 6
_RECORD_FILES = {record_type.file for record_type in RECORD_TYPES}


def run_folders(roots: Sequence[Path]) -> Iterator[Path]:
    """Yield every folder with records once, at most six levels below a root.

    The search does not enter the folder of a run, unless the folder is a root, since a stray file of records in a root
    must not hide the runs below it. Links are followed last, and no folder is visited twice, so `latest -> run7` is not
    a second run.
    """
    seen: set[tuple[int, int]] = set()
    folders = [(root, 0) for root in reversed(roots)]
    links: list[tuple[Path, int]] = []
    while folders or links:
        folder, depth = folders.pop() if folders else links.pop(0)
        try:
            state = folder.stat()
            with os.scandir(folder) as listing:
                entries = sorted(listing, key=lambda entry: entry.name, reverse=True)
        except OSError:  # the folder was deleted meanwhile, or may not be read
            continue
        if (state.st_dev, state.st_ino) in seen:
            continue
        seen.add((state.st_dev, state.st_ino))
        is_run = any(entry.name in _RECORD_FILES for entry in entries)
        if is_run:
            yield folder
        if depth >= MAX_DEPTH or (is_run and depth):
            continue
        for entry in entries:
            if not entry.name.startswith(".") and entry.is_dir():
                (links if entry.is_symlink() else folders).append((folder / entry.name, depth + 1))
