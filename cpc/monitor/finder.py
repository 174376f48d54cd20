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
    must not hide the runs below it. In a folder links come last, so `latest -> run7` is not a second run.
    """
    seen: set[tuple[int, int]] = set()
    for root in roots:
        for path, folders, files in os.walk(root, followlinks=True):  # folders that cannot be read are left out
            state, depth = os.stat(path), len(Path(path).relative_to(root).parts)
            is_known, is_run = (state.st_dev, state.st_ino) in seen, not _RECORD_FILES.isdisjoint(files)
            seen.add((state.st_dev, state.st_ino))
            if is_run and not is_known:
                yield Path(path)
            if is_known or depth >= MAX_DEPTH or (is_run and depth):
                folders.clear()
            visible = [name for name in folders if not name.startswith(".")]
            folders[:] = sorted(visible, key=lambda name: (os.path.islink(os.path.join(path, name)), name))
