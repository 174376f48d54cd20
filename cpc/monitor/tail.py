"""Following a file that grows by whole lines, and may be cut, replaced or deleted at any time."""

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

CHUNK_BYTES = 4 << 20
_MARK_BYTES = 512


class Lines(NamedTuple):
    """Whole lines, in order; `starts_anew`: of another file than was read before, whose lines are to be forgotten."""

    lines: list[bytes]
    starts_anew: bool


class Tail:
    """Reads on from where it stopped.

    Args:
        path: the file.
        offset: bytes read before, up to and with a newline.
        mark: what `mark` was then: a digest of the bytes before `offset`, by which the file is known again.
    """

    def __init__(self, path: Path, offset: int = 0, mark: str = "") -> None:
        self.path = path
        self.offset = offset
        self.mark = mark
        self.modified_at = 0.0  # unix seconds by the file's own clock, when last read
        self._seen: tuple[int, int, int] | None = None

    def read(self) -> Lines:
        """Whole lines since the last call, about 4 MB at most; a torn last line waits for its newline.

        Raises:
            FileNotFoundError: if there is no file (any more).
        """
        with self.path.open("rb", buffering=0) as file:
            state = os.fstat(file.fileno())
            seen = (state.st_ino, state.st_size, state.st_mtime_ns)
            self.modified_at = state.st_mtime
            if seen == self._seen:
                return Lines([], False)
            starts_anew = state.st_size < self.offset or self._mark_at(file.fileno(), self.offset) != self.mark
            if starts_anew:
                self.offset = 0
            block = _whole_lines(file.fileno(), self.offset)
            self.offset += len(block)
            self.mark = self._mark_at(file.fileno(), self.offset)
            # At the end, and until the file changes, there is no need to look again.
            self._seen = seen if len(block) < CHUNK_BYTES // 2 else None
        return Lines(block.split(b"\n")[:-1], starts_anew)

    def _mark_at(self, file: int, offset: int) -> str:
        start = max(0, offset - _MARK_BYTES)
        return hashlib.sha256(os.pread(file, offset - start, start)).hexdigest()[:16] if offset else ""


def _whole_lines(file: int, offset: int) -> bytes:
    """Up to 4 MB that end with a newline; more where a single line is longer."""
    size = CHUNK_BYTES
    while True:
        block = os.pread(file, size, offset)
        end = block.rfind(b"\n") + 1
        if end or len(block) < size:
            return block[:end]
        size *= 2
