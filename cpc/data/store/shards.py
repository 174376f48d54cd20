"""Packs in shards: what a pack holds, cut into files of one size that are read from a folder or fetched from a URL.

A sharded corpus is a folder: `rows-00000.bin`, `rows-00001.bin`, ..., which put together are a pack's `rows.bin`; the
pack's other files and the table of the corpus; `shards.json`, which has the size and the SHA-256 of every file.
Reading is by place, so that the order of batches does not depend on how or where the corpus is kept.
"""

import fcntl
import hashlib
import json
import math
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

from cpc.data.store.atomic import json_text
from cpc.data.store.atomic_folder import build_atomically
from cpc.data.store.fetching import fetch, is_url
from cpc.data.store.untrusted import open_regular, read_bytes

FORMAT = 1
INDEX_NAME = "shards.json"
SHARD_BYTES = 2**24
_OF_PACK, _TABLES = ("index.json", "rows.npy"), ("manifest.csv", "alignments.csv", "images.json")
_MOST_INDEX_BYTES, _MOST_SHARD_BYTES, _MOST_FILE_BYTES, _MOST_BYTES = 2**28, 2**30, 2**32, 2**50
_MOST_CHECKED_BYTES = 2e11  # by one process: two minutes and a half of it
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Shards:
    """The bytes of a pack's `rows.bin`, by place.

    Shards that are fetched stay in a cache that other processes and runs share; the ones not read for the longest time
    make room. A shard is checked when it is fetched; one that is at hand, when a process first reads it, until it has
    checked 200 GB. A copy sent to another process carries places alone.

    Args:
        source: a folder that `write_shards` wrote, or its URL.
        cache_dir: folder for what is fetched; `$XDG_CACHE_HOME/cpc/shards` unless given.
        cache_gb: what fetched shards of one corpus may take of the disk, 1e9 bytes.

    Attributes:
        folder: where the pack's other files lie, checked.
        num_bytes: of all shards.

    Raises:
        ValueError: if there is no sharded corpus, a file of it is damaged, or `cache_gb` is less than two shards.
        ConnectionError: as `fetch`.
    """

    def __init__(self, source: str | Path, cache_dir: str | Path | None = None, cache_gb: float = 50.0) -> None:
        self.source = str(source).rstrip("/")
        self._is_remote = is_url(source)
        content = self._read_index()
        try:
            self._index = index = parse_index(content)
        except ValueError as error:
            raise ValueError(f"{self.source}/{error}") from error
        self.num_bytes = index.num_bytes
        if not self._is_remote:
            self.folder = Path(source)
        else:
            self._most_cached_bytes = cache_gb * 1e9
            if not self._most_cached_bytes >= 2 * index.shard_bytes:
                raise ValueError(
                    f"`cache_gb`={cache_gb} does not hold two shards of {self.source}, of {index.shard_bytes / 1e9:g} "
                    "GB each: raise it"
                )
            self.folder = _cache(cache_dir) / hashlib.sha256(content).hexdigest()[:24]
            self.folder.mkdir(parents=True, exist_ok=True)
        self._checked: set[str] = set()
        for name, seal in index.files.items():
            if not self._is_whole(name, seal):
                self._fetch(name, seal)

    def read(self, start: int, stop: int) -> np.ndarray:
        """These bytes, `[stop - start]` uint8; shards that are not at hand are fetched.

        Raises:
            ValueError: if a local shard is missing or damaged.
            ConnectionError: as `fetch`.
        """
        if not 0 <= start <= stop <= self.num_bytes:
            raise ValueError(f"bytes {start} to {stop} lie outside of the {self.num_bytes} of {self.source}")
        found, done = np.empty(stop - start, np.uint8), 0
        while done < len(found):
            shard, offset = divmod(start + done, self._index.shard_bytes)
            wanted = found[done : done + self._index.shard_bytes - offset]
            self._read_shard(shard, offset, wanted)
            done += len(wanted)
        return found

    def _read_index(self) -> bytes:
        if self._is_remote:
            return fetch(f"{self.source}/{INDEX_NAME}", _MOST_INDEX_BYTES, parse_index)
        return read_bytes(Path(self.source) / INDEX_NAME, _MOST_INDEX_BYTES)

    def _read_shard(self, shard: int, offset: int, into: np.ndarray) -> None:
        name, seal = shard_name(shard), self._index.shards[shard]
        try:
            with open_regular(self.folder / name) as stream:
                if self._is_sound(stream, name, seal):
                    stream.seek(offset)
                    if stream.readinto(into.data) == len(into):
                        if self._is_remote:
                            with suppress(OSError):  # a cache that may only be read
                                os.utime(stream.fileno())  # read last, forgotten last
                        return
        except FileNotFoundError:
            pass
        into[:] = np.frombuffer(self._fetch(name, seal), np.uint8)[offset : offset + len(into)]

    def _is_sound(self, stream: FileIO, name: str, seal: "Seal") -> bool:
        """Whether an open shard has its size and, the first time that this process reads it, its checksum."""
        if os.fstat(stream.fileno()).st_size != seal.num_bytes:
            return False
        if name not in self._checked and len(self._checked) * self._index.shard_bytes < _MOST_CHECKED_BYTES:
            if hashlib.file_digest(stream, "sha256").hexdigest() != seal.sha256:
                return False
            self._checked.add(name)
        return True

    def _is_whole(self, name: str, seal: "Seal") -> bool:
        path = self.folder / name
        return path.is_file() and path.stat().st_size == seal.num_bytes and _sha256(path.read_bytes()) == seal.sha256

    def _fetch(self, name: str, seal: "Seal") -> bytes:
        """The content of a file, which is put into the cache, at once."""
        if not self._is_remote:
            raise ValueError(f"{self.folder / name} is missing or damaged: copy the corpus again")
        content = fetch(f"{self.source}/{name}", seal.num_bytes, seal.check)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)  # somebody cleared the cache
            with _alone_in(self.folder):
                self._make_room(seal.num_bytes)
                new = self.folder / f"{name}.{secrets.token_hex(4)}.new"
                try:
                    with new.open("wb") as stream:
                        stream.write(content)
                        stream.flush()
                        os.fsync(stream.fileno())  # or a loss of power leaves zeros of the right size
                    new.replace(self.folder / name)
                finally:
                    new.unlink(missing_ok=True)
        except FileNotFoundError:  # cleared again
            pass
        except OSError as error:
            reason = f"{error.strerror}: lower `cache_gb`, or name a place on another disk with `cache_dir`"
            raise OSError(error.errno, reason, str(self.folder)) from error
        self._checked.add(name)
        return content

    def _make_room(self, num_bytes: int) -> None:
        """Remove the shards that were not read for the longest time, and what killed processes have left of some."""
        found = []
        for path in self.folder.glob("rows-*"):
            if path.suffix == ".new":  # not of a living process: it would be alone here
                path.unlink(missing_ok=True)
                continue
            status = path.stat()
            found.append((status.st_mtime_ns, status.st_size, path))
        excess = sum(size for _, size, _ in found) + num_bytes - self._most_cached_bytes
        for _, size, path in sorted(found):
            if excess <= 0:
                break
            path.unlink(missing_ok=True)
            excess -= size


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Holds a lock of the folder itself, which ends with the process; where there are none, goes on without."""
    place = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(place, fcntl.LOCK_EX)
        yield
    finally:
        os.close(place)


class ShardedElements:
    """The elements of all rows of a sharded pack, read by slices and lists of places, as an array's first axis."""

    def __init__(self, shards: Shards, dtype: np.dtype, shape: tuple[int, ...]) -> None:
        self._shards, self._dtype, self._shape = shards, dtype, shape
        self._element_bytes = dtype.itemsize * math.prod(shape)

    def __getitem__(self, places: Any) -> np.ndarray:
        if not isinstance(places, slice):
            return np.stack([self[place : place + 1][0] for place in np.asarray(places).tolist()])
        start, stop = (int(place) * self._element_bytes for place in (places.start, places.stop))
        return self._shards.read(start, max(start, stop)).view(self._dtype).reshape(-1, *self._shape)


@dataclass(frozen=True)
class Seal:
    """Size and SHA-256 of a file."""

    num_bytes: int
    sha256: str

    def check(self, content: bytes) -> None:
        """Refuse other content.

        Raises:
            ValueError: saying what differs.
        """
        if len(content) != self.num_bytes:
            raise ValueError(f"{len(content)} of {self.num_bytes} bytes came")
        if _sha256(content) != self.sha256:
            raise ValueError("its SHA-256 is not that of the index")


@dataclass(frozen=True)
class Index:
    """What `shards.json` says. It names no file: names are known, so none can lead out of the folder.

    Attributes:
        shard_bytes: of every shard but the last.
        num_bytes: of all shards.
        shards: one seal each.
        files: the other files.
    """

    shard_bytes: int
    num_bytes: int
    shards: list[Seal]
    files: dict[str, Seal]


def parse_index(content: bytes) -> Index:
    """The content of a `shards.json`.

    Raises:
        ValueError: if it is damaged, of a later version, or its sizes and counts do not fit together.
    """
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{INDEX_NAME} is not JSON, cut off? {error}") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ValueError(f"{INDEX_NAME} is not of format {FORMAT}: shard the corpus again, or upgrade cpc")
    shard_bytes = _whole(found.get("shard_bytes"), 1, _MOST_SHARD_BYTES, "shard_bytes")
    num_bytes = _whole(found.get("num_bytes"), 0, _MOST_BYTES, "num_bytes")
    sums, files = found.get("shards"), found.get("files")
    if not isinstance(sums, list) or len(sums) != -(-num_bytes // shard_bytes):
        raise ValueError(f"{INDEX_NAME}: {num_bytes} bytes in shards of {shard_bytes} need one checksum a shard")
    if not isinstance(files, dict) or not set(_OF_PACK) < set(files) <= {*_OF_PACK, *_TABLES}:
        raise ValueError(f"{INDEX_NAME}: files must be {', '.join(_OF_PACK)}, and some of {', '.join(_TABLES)}")
    sizes = [shard_bytes] * (len(sums) - 1) + [num_bytes - shard_bytes * (len(sums) - 1)]
    seals = [_seal(size, sha256, shard_name(i)) for i, (size, sha256) in enumerate(zip(sizes, sums, strict=False))]
    return Index(shard_bytes, num_bytes, seals, {name: _seal_of(entry, name) for name, entry in files.items()})


def shard_name(shard: int) -> str:
    """The file of a shard."""
    return f"rows-{shard:05}.bin"


def is_sharded(source: str | Path) -> bool:
    """Whether a source is a URL, which must be that of a sharded corpus, or the folder of one."""
    return is_url(source) or (Path(source) / INDEX_NAME).is_file()


def write_shards(pack: Path, tables: Mapping[str, bytes], out: Path, element_bytes: int, shard_bytes: int) -> int:
    """Cut a pack into shards; returns their number. Memory for one shard is needed.

    Args:
        pack: its folder.
        tables: what is known of the rows, by name: `manifest.csv` and perhaps `alignments.csv`, or `images.json`.
        out: a new folder; if this fails or is killed, it is not there.
        element_bytes: of one element, which no shard cuts in two.
        shard_bytes: at most, of a shard.

    Raises:
        ValueError: if `out` is there, or a shard is smaller than an element or larger than 2^30 bytes.
    """
    if not element_bytes <= shard_bytes <= _MOST_SHARD_BYTES:
        raise ValueError(f"a shard of {shard_bytes} bytes is legal from {element_bytes} bytes to {_MOST_SHARD_BYTES}")
    shard_bytes -= shard_bytes % element_bytes
    contents = {name: (pack / name).read_bytes() for name in _OF_PACK} | dict(tables)
    with build_atomically(out, lambda _: False, "out") as unfinished:
        sums: list[str] = []
        with (pack / "rows.bin").open("rb") as stream:
            while content := stream.read(shard_bytes):
                (unfinished / shard_name(len(sums))).write_bytes(content)
                sums.append(_sha256(content))
            num_bytes = stream.tell()
        for name, content in contents.items():
            (unfinished / name).write_bytes(content)
        files = {name: vars(Seal(len(content), _sha256(content))) for name, content in contents.items()}
        index = {"format": FORMAT, "shard_bytes": shard_bytes, "num_bytes": num_bytes, "shards": sums, "files": files}
        (unfinished / INDEX_NAME).write_text(json_text(index), encoding="utf-8")
    return len(sums)


def _cache(cache_dir: str | Path | None) -> Path:
    if cache_dir is not None:
        return Path(cache_dir)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cpc" / "shards"


def _whole(value: Any, lowest: int, highest: int, name: str) -> int:
    if type(value) is not int or not lowest <= value <= highest:
        raise ValueError(f"{INDEX_NAME}: {name} is {str(value)[:40]}, but legal are {lowest} to {highest}")
    return value


def _seal(num_bytes: int, sha256: Any, name: str) -> Seal:
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise ValueError(f"{INDEX_NAME}: {name} has no SHA-256")
    return Seal(num_bytes, sha256)


def _seal_of(entry: Any, name: str) -> Seal:
    entry = entry if isinstance(entry, dict) else {}
    return _seal(_whole(entry.get("num_bytes"), 0, _MOST_FILE_BYTES, f"num_bytes of {name}"), entry.get("sha256"), name)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
