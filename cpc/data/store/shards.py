"""Packs in shards: the elements of a pack, cut into files of one size, in a folder or behind a URL.

The files `rows-00000.bin`, `rows-00001.bin` and so on are the `rows.bin` of a pack. `shards.json` has the size and the
SHA-256 of every file, also of the other files of the pack and the table of the corpus.
"""

import fcntl
import hashlib
import json
import math
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

from cpc.config.argument_rules import Range
from cpc.data.store.atomic import build_atomically, json_text
from cpc.data.store.untrusted import open_regular, read_bytes, reading

FORMAT = 1
INDEX_NAME = "shards.json"
_PACK_FILES, _TABLES = ("index.json", "rows.npy"), ("manifest.csv", "alignments.csv", "images.json", "signals.json")
_MOST_INDEX_BYTES, _MOST_SHARD_BYTES, _MOST_FILE_BYTES, _MOST_BYTES = 2**28, 2**30, 2**32, 2**50
_MOST_CHECKED_BYTES = 2e11  # bytes that a process checks at most; this takes two and a half minutes


class Shards:
    """The bytes of a pack's `rows.bin`, by offset.

    Fetched shards stay in a cache that processes and runs share; the least recently read shards are removed to make
    room. A fetched shard is checked at once, a local or cached one when a process first reads it, unless the process
    has already checked 200 GB.

    Args:
        cache_dir: folder for fetched files; None: `$XDG_CACHE_HOME/cpc/shards`.
        cache_gb: largest size of the fetched shards of one corpus on disk, in 1e9 bytes.
    """

    def __init__(self, source: str | Path, cache_dir: str | Path | None = None, cache_gb: float = 50.0) -> None:
        self.source = str(source).rstrip("/")
        self._is_remote = is_url(source)
        if self._is_remote:
            content = fetch(f"{self.source}/{INDEX_NAME}", _MOST_INDEX_BYTES, parse_index)
        else:
            content = read_bytes(Path(source) / INDEX_NAME, _MOST_INDEX_BYTES)
        try:
            self._shard_bytes, self.num_bytes, files, self._seals = parse_index(content)
        except ValueError as error:
            raise ValueError(f"{self.source}/{error}") from error
        self.folder = Path(source)
        if self._is_remote:
            self._most_cached_bytes = cache_gb * 1e9
            if not self._most_cached_bytes >= 2 * self._shard_bytes:
                raise ValueError(f"`cache_gb`={cache_gb} must hold two shards of {self._shard_bytes / 1e9:g} GB")
            cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cpc" / "shards"
            self.folder = Path(cache_dir or cache) / hashlib.sha256(content).hexdigest()[:24]
            self.folder.mkdir(parents=True, exist_ok=True)
        self._checked: set[str] = set()
        for name in files:
            with self._open(name) as stream:
                if stream is None:
                    self._fetch(name)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return the bytes from `start` to `stop`, `[stop - start]` uint8; fetch missing shards."""
        if not 0 <= start <= stop <= self.num_bytes:
            raise ValueError(f"bytes {start} to {stop} lie outside of the {self.num_bytes} of {self.source}")
        content, done = np.empty(stop - start, np.uint8), 0
        while done < len(content):
            shard, offset = divmod(start + done, self._shard_bytes)
            part = content[done : done + self._shard_bytes - offset]
            self._read_shard(shard_name(shard), offset, part)
            done += len(part)
        return content

    def _read_shard(self, name: str, offset: int, out: np.ndarray) -> None:
        with self._open(name) as stream:
            if stream is not None:
                stream.seek(offset)
                if stream.readinto(out.data) == len(out):
                    if self._is_remote:
                        with suppress(OSError):  # the cache may be read-only
                            os.utime(stream.fileno())  # the least recently read shard is removed first
                    return
        out[:] = np.frombuffer(self._fetch(name), np.uint8)[offset : offset + len(out)]

    @contextmanager
    def _open(self, name: str) -> Iterator[FileIO | None]:
        """Yield a file of the folder, opened; None if it is missing or damaged."""
        try:
            stream = open_regular(self.folder / name)
        except (FileNotFoundError, IsADirectoryError):
            yield None
            return
        with stream:
            yield stream if self._is_sound(stream, name) else None

    def _is_sound(self, stream: FileIO, name: str) -> bool:
        """Return whether a file has its size and, when this process first reads it, its checksum."""
        num_bytes, sha256 = self._seals[name]
        if os.fstat(stream.fileno()).st_size != num_bytes:
            return False
        if name not in self._checked and len(self._checked) * self._shard_bytes < _MOST_CHECKED_BYTES:
            if hashlib.file_digest(stream, "sha256").hexdigest() != sha256:
                return False
            self._checked.add(name)
        return True

    def _fetch(self, name: str) -> bytes:
        """Fetch a file, write it to the cache atomically, and return its content."""
        if not self._is_remote:
            raise ValueError(f"{self.folder / name} is missing or damaged: copy the corpus again")
        seal = self._seals[name]

        def check(content: bytes) -> None:
            if len(content) != seal[0]:
                raise ValueError(f"{len(content)} of {seal[0]} bytes came")
            if hashlib.sha256(content).hexdigest() != seal[1]:
                raise ValueError("its SHA-256 differs from the index")

        content = fetch(f"{self.source}/{name}", seal[0], check)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)  # the cache may have been cleared
            with _locked(self.folder):
                self._make_room(len(content))
                new = self.folder / f"{name}.{secrets.token_hex(4)}.new"
                try:
                    with new.open("wb") as stream:
                        stream.write(content)
                        stream.flush()
                        os.fsync(stream.fileno())  # otherwise a loss of power may leave a file of zeros
                    new.replace(self.folder / name)
                finally:
                    new.unlink(missing_ok=True)
        except FileNotFoundError:  # the cache was cleared again
            pass
        except OSError as error:
            reason = f"{error.strerror}: lower `cache_gb`, or name a folder on another disk with `cache_dir`"
            raise OSError(error.errno, reason, str(self.folder)) from error
        self._checked.add(name)
        return content

    def _make_room(self, num_bytes: int) -> None:
        """Remove the least recently read shards, and temporary files of killed processes."""
        for leftover in self.folder.glob("rows-*.new"):  # locked, so no running process writes them
            leftover.unlink(missing_ok=True)
        shards = {path: path.stat() for path in self.folder.glob("rows-*")}
        excess = sum(status.st_size for status in shards.values()) + num_bytes - self._most_cached_bytes
        for path in sorted(shards, key=lambda path: shards[path].st_mtime_ns):
            if excess <= 0:
                break
            path.unlink(missing_ok=True)
            excess -= shards[path].st_size


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a lock of the folder, which the system releases at the end of the process. Without locks, do nothing."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class ShardedElements:
    """The elements of all rows of a sharded pack, indexed along the first axis by slices and lists of indices."""

    def __init__(self, shards: Shards, dtype: np.dtype, shape: tuple[int, ...]) -> None:
        self._shards, self._dtype, self._shape = shards, dtype, shape
        self._element_bytes = dtype.itemsize * math.prod(shape)

    def __getitem__(self, index: Any) -> np.ndarray:
        if not isinstance(index, slice):
            return np.stack([self[i : i + 1][0] for i in np.asarray(index).tolist()])
        start, stop = (int(i) * self._element_bytes for i in (index.start, index.stop))
        return self._shards.read(start, max(start, stop)).view(self._dtype).reshape(-1, *self._shape)


def parse_index(content: bytes) -> tuple[int, int, list[str], dict[str, tuple[int, str]]]:
    """Return size of a shard, size of all, the other files, and size and SHA-256 of each file of a `shards.json`."""
    try:
        entries = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{INDEX_NAME} is not JSON; was it cut off? {error}") from error
    if not isinstance(entries, dict) or entries.get("format") != FORMAT:
        raise ValueError(f"{INDEX_NAME} is not of format {FORMAT}: shard the corpus again, or upgrade cpc")
    shard_bytes = _integer(entries, "shard_bytes", 1, _MOST_SHARD_BYTES)
    num_bytes = _integer(entries, "num_bytes", 0, _MOST_BYTES)
    sums, files = entries.get("shards"), entries.get("files")
    if not isinstance(sums, list) or len(sums) != -(-num_bytes // shard_bytes):
        raise ValueError(f"{INDEX_NAME}: {num_bytes} bytes in shards of {shard_bytes} need one checksum per shard")
    if not isinstance(files, dict) or not set(_PACK_FILES) < set(files) <= {*_PACK_FILES, *_TABLES}:
        raise ValueError(f"{INDEX_NAME}: files must be {', '.join(_PACK_FILES)}, and some of {', '.join(_TABLES)}")
    seals = {shard_name(i): (min(shard_bytes, num_bytes - i * shard_bytes), each) for i, each in enumerate(sums)}
    for name, entry in files.items():
        entry = entry if isinstance(entry, dict) else {}
        seals[name] = (_integer(entry, "num_bytes", 0, _MOST_FILE_BYTES, f" of {name}"), entry.get("sha256"))
    for name, (_, sha256) in seals.items():
        if not isinstance(sha256, str) or not re.fullmatch("[0-9a-f]{64}", sha256):
            raise ValueError(f"{INDEX_NAME}: {name} has no SHA-256")
    return shard_bytes, num_bytes, list(files), seals


def shard_name(shard: int) -> str:
    """Return the file name of a shard."""
    return f"rows-{shard:05}.bin"


def is_sharded(source: str | Path) -> bool:
    """Return whether a source is a sharded corpus: a folder that holds `shards.json`, or any URL."""
    return is_url(source) or (Path(source) / INDEX_NAME).is_file()


@contextmanager
def open_table(shards: Shards, name: str, contents: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON table of a sharded corpus; an error of the block names the table."""
    path = shards.folder / name
    if not path.is_file():
        raise ValueError(f"{shards.source} holds no {contents}: `cpc data shard` made it from other data")
    with reading(path, f"is not a table of {contents}; is it damaged?"):
        yield json.loads(path.read_bytes())


def list_of(kind: type, values: Any, num: int | None = None) -> list[Any]:
    """Return a list of a table if it has `num` elements (None: any number) of one type; else raise ValueError."""
    if not isinstance(values, list) or num not in (None, len(values)) or set(map(type, values)) - {kind}:
        raise ValueError(f"a list of {'' if num is None else f'{num} '}{kind.__name__} is missing")
    return values


def write_shards(pack: Path, tables: Mapping[str, bytes], out: Path, element_bytes: int, shard_bytes: int) -> int:
    """Cut a pack into shards, one at a time in memory, and return their number."""
    Range(element_bytes, _MOST_SHARD_BYTES).check("the bytes of a shard", shard_bytes)
    shard_bytes -= shard_bytes % element_bytes
    contents = {name: (pack / name).read_bytes() for name in _PACK_FILES} | dict(tables)
    with build_atomically(out, lambda _: False, "out") as unfinished:
        sums: list[str] = []
        with (pack / "rows.bin").open("rb") as stream:
            while content := stream.read(shard_bytes):
                (unfinished / shard_name(len(sums))).write_bytes(content)
                sums.append(hashlib.sha256(content).hexdigest())
            num_bytes = stream.tell()
        for name, content in contents.items():
            (unfinished / name).write_bytes(content)
        files = {
            name: {"num_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for name, content in contents.items()
        }
        index = {"format": FORMAT, "shard_bytes": shard_bytes, "num_bytes": num_bytes, "shards": sums, "files": files}
        (unfinished / INDEX_NAME).write_text(json_text(index), encoding="utf-8")
    return len(sums)


def _integer(entries: Mapping[str, Any], name: str, lowest: int, highest: int, owner: str = "") -> int:
    value = entries.get(name)
    if type(value) is not int or not lowest <= value <= highest:
        raise ValueError(f"{INDEX_NAME}: {name}{owner} is {str(value)[:40]}, but must be from {lowest} to {highest}")
    return value


NUM_ATTEMPTS = 10  # waits of two minutes in total, enough for a server to restart
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.5, 30.0
TIMEOUT_SECONDS = 30.0  # limit of seconds without data from an HTTP server
_BLOCK_BYTES = 2**20


def is_url(source: object) -> bool:
    """Return whether a source has a protocol, such as `https://HOST/corpus`; otherwise it is a path."""
    return "://" in str(source)


def fetch(url: str, most_bytes: int, check: Callable[[bytes], object]) -> bytes:
    """Return the content of a file. A failed request is repeated, and the wait before it doubles every time.

    Args:
        url: URL of any protocol that fsspec knows.
        most_bytes: largest legal size; a longer file is not read to its end.
        check: raises a ValueError on truncated or damaged content, which is then requested again.
    """
    wait, started, reason = FIRST_WAIT_SECONDS, time.monotonic(), ""
    for attempt in range(NUM_ATTEMPTS):
        if attempt:
            time.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT_SECONDS)
        file_system, path, options = _file_system(url)
        try:
            with file_system.open(path, "rb", **options) as stream:
                content = _read(stream, most_bytes)
            check(content)
            return content
        except FileNotFoundError as error:
            raise FileNotFoundError(f"there is no {url}") from error
        except Exception as error:  # every file system has its own error types
            reason = f"{type(error).__name__}: {error}".rstrip(": ")
    tried = f"{NUM_ATTEMPTS} attempts in {time.monotonic() - started:.0f} s failed, the last one with {reason}"
    raise ConnectionError(f"{url} could not be read: {tried}. Resume when the URL can be reached again")


def _file_system(url: str) -> tuple[Any, str, dict[str, Any]]:
    """Return the file system of a URL (fsspec keeps one per process), the file's path in it, and options of `open`."""
    import fsspec

    settings, options = {}, {}
    if url.startswith(("http://", "https://")):
        from aiohttp import ClientTimeout

        # The file is read in one request: if any size is given, fsspec does not ask for the size first.
        options = {"block_size": 0, "size": 1}
        timeout = ClientTimeout(total=None, sock_connect=TIMEOUT_SECONDS, sock_read=TIMEOUT_SECONDS)
        settings = {"client_kwargs": {"timeout": timeout}}
    try:
        file_system, path = fsspec.core.url_to_fs(url, **settings)
    except (ImportError, ValueError) as error:
        raise ValueError(f"{url} cannot be opened: {error}") from error
    return file_system, path, options


def _read(stream: Any, most_bytes: int) -> bytes:
    blocks, left = [], most_bytes + 1
    while left and (block := stream.read(min(left, _BLOCK_BYTES))):
        blocks.append(block)
        left -= len(block)
    if not left:
        raise ValueError(f"more than the {most_bytes} bytes that it should have")
    return b"".join(blocks)
