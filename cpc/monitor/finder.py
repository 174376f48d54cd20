"""Where runs lie below some folders."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from cpc.monitor.record_types import RECORD_TYPES

MAX_DEPTH = 6
_RECORD_FILES = {record_type.file for record_type in RECORD_TYPES}


def run_folders(roots: Sequence[Path]) -> Iterator[Path]:
    """Folders with records, each once, six levels below a root at most.

    Folders within a run are not searched, except in a root: a stray file of records there must not hide the runs below.
    Links are followed after everything else, so that `latest -> run7` is not a second run, and never twice.
    """
    seen: set[tuple[int, int]] = set()
    at_hand = [(root, 0) for root in reversed(roots)]
    links: list[tuple[Path, int]] = []
    while at_hand or links:
        folder, depth = at_hand.pop() if at_hand else links.pop(0)
        try:
            state = folder.stat()
            with os.scandir(folder) as listing:
                entries = sorted(listing, key=lambda entry: entry.name, reverse=True)
        except OSError:  # deleted meanwhile, or nobody's to read
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
                (links if entry.is_symlink() else at_hand).append((folder / entry.name, depth + 1))
