"""A reader of a file that grows by whole lines, and may be cut, replaced or deleted at any time."""

import os
import time
from pathlib import Path
from typing import NamedTuple

from cpc.data.store.untrusted import open_regular

CHUNK_BYTES = 1 << 20
MOST_LINE_BYTES = 1 << 24
_MARK_BYTES = 512


class Lines(NamedTuple):
    """Complete lines, in order. If `from_start` is True, they begin at the file's start: forget earlier lines."""

    lines: list[bytes]
    from_start: bool


class Tail:
    """A reader that continues where it stopped; it compares the bytes before its offset to detect another file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0  # number of bytes read, up to and including a newline
        self.changed_at: float | None = None  # by time.monotonic, when the file was last written to
        self.mark = b""  # the last bytes before `offset`
        self._seen: tuple[int, int, int] | None = None
        self._modified_at: float | None = None

    def read(self) -> Lines:
        """Return the complete lines since the last call, about 1 MB at most; an incomplete last line is left for later.

        Raises:
            FileNotFoundError: if the file does not exist (any more).
            ValueError: if the file is not a regular file, or a line has more than 16 MB.
        """
        state = os.stat(self.path)
        seen = (state.st_ino, state.st_size, state.st_mtime_ns)
        if seen == self._seen:
            return Lines([], False)
        self._note_change(state.st_mtime)
        with open_regular(self.path) as file:
            if not self.offset or self._read_mark(file.fileno()) != self.mark:
                self.offset = 0
            start = self.offset
            block = _whole_lines(file.fileno(), start)
            self.offset += len(block)
            self.mark = self._read_mark(file.fileno())
        # At the end of the file the next call does not read, unless the file has changed.
        self._seen = seen if len(block) < CHUNK_BYTES // 2 else None
        return Lines(block.split(b"\n")[:-1], not start)

    def _read_mark(self, file: int) -> bytes:
        start = max(0, self.offset - _MARK_BYTES)
        return os.pread(file, self.offset - start, start) if self.offset else b""

    def _note_change(self, modified_at: float) -> None:
        """Set `changed_at` if the file was modified.

        Clocks differ between machines. So only the first age is computed from the file's time, all later ages from the
        local clock.
        """
        if modified_at != self._modified_at:
            age = max(0.0, time.time() - modified_at) if self._modified_at is None else 0.0
            self.changed_at = time.monotonic() - age
            self._modified_at = modified_at


def _whole_lines(file: int, offset: int) -> bytes:
    """Return up to 1 MB that ends with a newline, or more if a single line is longer."""
    size = CHUNK_BYTES
    while True:
        block = os.pread(file, size, offset)
        end = block.rfind(b"\n") + 1
        if end or len(block) < size:
            return block[:end]
        if size >= MOST_LINE_BYTES:
            raise ValueError(f"the line that begins at byte {offset} has more than {size} bytes")
        size *= 2
