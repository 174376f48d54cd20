"""Packs: rows of numbers, decoded once into one memory map, from which they are read.

A row holds elements of one type and shape: the samples of an audio file, or a single square for an image. A pack is a
folder with three files. `rows.bin` holds the elements of all rows. `rows.npy`, `[num_rows, 2 + 2 C]` int64, holds each
row's offset and length in elements and its sums per channel (`bit_sums` for floats). The third is `index.json`. The
folder's name is a hash of the input, so a pack is built once and reused until the input changes.
"""

import errno
import json
import math
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float64, Int64, Shaped
from tqdm import tqdm

from cpc.data.store.atomic import build_atomically, build_once, json_text
from cpc.data.store.folders import map_in_order, refuse_bad
from cpc.data.store.shards import ShardedElements, Shards
from cpc.data.store.untrusted import read_json


class ChannelStatistics(NamedTuple):
    """Mean and standard deviation of every channel."""

    mean: Float64[np.ndarray, " C"]
    std: Float64[np.ndarray, " C"]


def value_sums(values: Shaped[np.ndarray, "... C"]) -> Int64[np.ndarray, "2 C"]:
    """Return the sums of integers and of their squares per channel. They are exact as long as they stay below 2**53."""
    # Channels go first, because sums along the last axis are ten times faster.
    channels = np.ascontiguousarray(values.reshape(-1, values.shape[-1]).T, np.float64)
    return np.stack([channels.sum(axis=1), np.vecdot(channels, channels)]).astype(np.int64)


def bit_sums(values: Shaped[np.ndarray, "n C"]) -> Int64[np.ndarray, "2 C"]:
    """Return sums of the bit patterns of floats and of their squares per channel, modulo 2**64, exact in any order."""
    bits = values.view(f"u{values.dtype.itemsize}").astype(np.uint64)
    return np.stack([bits.sum(axis=0), np.square(bits).sum(axis=0)]).view(np.int64)


def statistics_of(sums: Int64[np.ndarray, "n 2 C"], num_values: int, scale: int) -> ChannelStatistics:
    """Return mean and standard deviation of all values, divided by `scale`; `num_values` counts them per channel."""
    # The arithmetic uses Python's integers until the division, to avoid overflow and cancellation.
    means, stds = [], []
    for channel in np.moveaxis(sums, 2, 0):
        total, total_of_squares = (sum(column.tolist()) for column in channel.T)
        variance = (num_values * total_of_squares - total**2) / num_values**2
        means.append(total / num_values / scale)
        stds.append(variance**0.5 / scale)
    return ChannelStatistics(np.array(means), np.array(stds))


FORMAT = 3  # raise this version if the same input is written in another way
_BLOCK_ROWS, _BLOCK_BYTES = 64, 2**20  # rows that a thread decodes at a time
_DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Pack = TypeVar("Pack", bound="PackedRows")


class PackedRows:
    """The rows of a pack.

    Attributes:
        lengths: `[num_rows]` int64, elements of each row; 0 for a skipped row.
        shape: shape of an element; the last axis, if there is one, is the channels.
        skipped: reason for each skipped row.
    """

    def __init__(self, folder: str | Path, shards: Shards | None = None) -> None:
        self.folder = Path(folder)
        self._shards = shards
        self._map: np.ndarray | ShardedElements | None = None
        try:
            self._open(read_json(self.folder / "index.json"))
        except MemoryError:
            raise
        except Exception as error:  # a damaged file can raise many types of errors
            raise ValueError(f"{self.folder} holds no complete pack: {error}") from error

    def __len__(self) -> int:
        return len(self.lengths)

    def subset(self: Pack, rows: Sequence[int] | np.ndarray) -> Pack:
        """Return a view of only these rows, numbered from 0 in this order."""
        chosen = np.arange(len(self))[rows]
        view = object.__new__(type(self))  # copy() would drop the open memory map
        view.__dict__.update(self.__dict__)
        for name in ("lengths", "_offsets", "_rows"):
            setattr(view, name, getattr(self, name)[chosen])
        view.skipped = {new: self.skipped[old] for new, old in enumerate(chosen.tolist()) if old in self.skipped}
        return view

    def statistics_over(self, scale: int) -> ChannelStatistics:
        """Return the exact mean and standard deviation of each channel over all rows, divided by `scale`."""
        assert self._dtype.kind != "f", "exact sums of floats are not stored"
        sums = np.load(self.folder / "rows.npy")[self._rows, 2:].reshape(len(self), 2, -1)
        return statistics_of(sums, sum(self.lengths.tolist()) * math.prod(self.shape[:-1]), scale)

    def content(self, rows: Sequence[int] | np.ndarray) -> Int64[np.ndarray, "n columns"]:
        """Return lengths and exact sums of the values of these rows, which depend on the content, not on file paths."""
        return np.asarray(np.load(self.folder / "rows.npy")[self._rows[rows], 1:])

    @property
    def element_bytes(self) -> int:
        """Size of an element in bytes."""
        return self._dtype.itemsize * math.prod(self.shape)

    @property
    def elements(self) -> np.ndarray | ShardedElements:
        """The elements of all rows of the pack, on disk; indexed by slices and by lists of indices."""
        if self._map is None and self._shards is not None:
            self._map = ShardedElements(self._shards, self._dtype, self.shape)
        elif self._map is None:
            # A plain view of the map is kept, because a slice of a numpy.memmap costs several microseconds.
            flat = np.asarray(np.memmap(self.folder / "rows.bin", self._dtype, mode="r"))
            self._map = flat.reshape(-1, *self.shape)
        return self._map

    def _open(self, index: Mapping[str, Any]) -> None:
        """Read the index; subclasses read further entries."""
        num_bytes = {
            "rows.npy": (self.folder / "rows.npy").stat().st_size,
            "rows.bin": self._shards.num_bytes if self._shards else (self.folder / "rows.bin").stat().st_size,
        }
        if index["format"] != FORMAT or index["num_bytes"] != num_bytes:
            raise ValueError(f"its format is {index['format']}, its sizes {num_bytes} of {index['num_bytes']} bytes")
        self.shape = tuple(index["shape"])
        self.skipped = {int(row): str(reason) for row, reason in index["skipped"].items()}
        self._dtype = np.dtype(index["dtype"])
        if self._dtype.kind not in "biuf" or not all(type(length) is int and length > 0 for length in self.shape):
            raise ValueError(f"its elements are {self._dtype} {list(self.shape)}")
        table = np.load(self.folder / "rows.npy", mmap_mode="r")  # a map is never longer than its file
        num_columns = 2 + 2 * (self.shape[-1] if self.shape else 1)
        if table.dtype != np.int64 or table.shape[1:] != (num_columns,):
            raise ValueError(f"its table is {table.dtype} {list(table.shape)}, not int64 of {num_columns} columns")
        extents = np.asarray(table[:, :2])
        self._offsets, self.lengths = extents.T.copy()
        self._rows = np.arange(len(extents))
        num_elements = num_bytes["rows.bin"] // self.element_bytes
        if len(extents) and (extents.min() < 0 or (extents[:, 1] > num_elements - extents[:, 0]).any()):
            raise ValueError(f"rows lie outside of its {num_elements} elements")

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_map": None}


class RowSource(ABC):
    """The input of a pack."""

    noun: str
    dtype: str
    shape: tuple[int, ...]
    about: Mapping[str, Any] = {}

    @abstractmethod
    def rooms(self, num_workers: int, progress: bool) -> Sequence[int | str]:
        """Return, before decoding, an upper limit of each row's number of elements, or an error message."""

    def decoding(self) -> AbstractContextManager[None]:
        """Return a context in which several threads decode rows."""
        return nullcontext()

    @abstractmethod
    def decode(self, row: int) -> Iterator[np.ndarray]:
        """Yield the elements of a row, `[n, *shape]`, in one or several blocks."""


def pack_rows(
    source: RowSource,
    folder: Path,
    open_pack: Callable[[Path], Pack],
    *,
    skip_bad: bool,
    num_workers: int | None,
    progress: bool,
) -> Pack:
    """Decode every row of a source, or reuse what an earlier call decoded; of several processes one decodes."""

    def is_complete(candidate: Path) -> bool:
        try:
            open_pack(candidate)
        except ValueError:
            return False
        index = read_json(candidate / "index.json")
        return all(index.get(name) == value for name, value in about.items())

    about = json.loads(json_text(source.about))
    threads = num_workers or os.cpu_count() or 1
    build_once(folder, is_complete, lambda: _build(source, folder, is_complete, threads, progress))
    packed = open_pack(folder)
    check_skipped(packed, source.noun, skip_bad)
    return packed


def check_skipped(packed: PackedRows, noun: str, skip_bad: bool, num_rows: int | None = None) -> None:
    """Raise an error if a pack has skipped rows (with `skip_bad`, warn instead), or not as many rows as its table."""
    if num_rows not in (None, len(packed)):
        raise ValueError(f"{packed.folder} holds {len(packed)} {noun}s, but its table has {num_rows}: shard it again")
    refuse_bad(list(packed.skipped.values()), len(packed), f"{noun}s", skip_bad)


def _build(
    source: RowSource, folder: Path, is_complete: Callable[[Path], bool], num_workers: int, progress: bool
) -> None:
    """Write the pack to a temporary folder, and rename the folder when it is complete."""
    element_bytes = np.dtype(source.dtype).itemsize * math.prod(source.shape)
    sums_of = bit_sums if np.dtype(source.dtype).kind == "f" else value_sums  # sums of floats depend on their order
    num_channels = source.shape[-1] if source.shape else 1
    num_bytes = 0

    def decode(rows: range) -> int:
        with (unfinished / "rows.bin").open("r+b") as stream:
            for row in rows:
                if row not in problems:
                    stream.seek(element_bytes * int(offsets[row]))
                    table[row, 1:] = write_row(row, stream)
        return len(rows)

    def write_row(row: int, stream: BinaryIO) -> np.ndarray:
        length_and_sums = np.zeros(1 + 2 * num_channels, np.int64)
        try:
            for block in source.decode(row):
                elements = np.ascontiguousarray(block[: rooms[row] - length_and_sums[0]], source.dtype)
                stream.write(elements.data)
                length_and_sums[0] += len(elements)
                length_and_sums[1:] += sums_of(elements.reshape(-1, num_channels)).reshape(-1)
        except ValueError as error:
            problems[row] = str(error)
            return np.zeros_like(length_and_sums)
        return length_and_sums

    try:
        with build_atomically(folder, is_complete, "cache_dir") as unfinished:
            bounds = source.rooms(num_workers, progress)
            problems = {row: bound for row, bound in enumerate(bounds) if isinstance(bound, str)}
            rooms = [0 if isinstance(bound, str) else bound for bound in bounds]
            rows = range(len(rooms))
            offsets = np.cumsum([0, *rooms])
            num_bytes = element_bytes * int(offsets[-1])
            if num_bytes > shutil.disk_usage(unfinished).free:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            with (unfinished / "rows.bin").open("wb") as stream:
                stream.truncate(num_bytes)
            table = np.zeros((len(rows), 2 + 2 * num_channels), np.int64)
            table[:, 0] = offsets[:-1]
            per_block = min(_BLOCK_ROWS, max(1, _BLOCK_BYTES * len(rows) // max(num_bytes, 1)))
            blocks = [rows[first : first + per_block] for first in rows[::per_block]]
            bar = tqdm(total=len(rows), desc="pack: decode", unit=source.noun, disable=not progress)
            with source.decoding(), bar:
                for num_decoded in map_in_order(decode, blocks, num_workers):
                    bar.update(num_decoded)
            np.save(unfinished / "rows.npy", table)
            index = {
                "format": FORMAT,
                "dtype": source.dtype,
                "shape": source.shape,
                "num_bytes": {name: (unfinished / name).stat().st_size for name in ("rows.bin", "rows.npy")},
                "skipped": dict(sorted(problems.items())),
                **source.about,
            }
            (unfinished / "index.json").write_text(json_text(index), encoding="utf-8")
    except OSError as error:
        if error.errno not in _DISK_IS_FULL:
            raise
        free = shutil.disk_usage(folder.parent).free
        sizes = f"the packed {source.noun}s take {num_bytes / 1e9:.3f} GB, but only {free / 1e9:.3f} GB are free"
        reason = f"{error.strerror}: {sizes}; make room, or name a folder on another disk with `cache_dir`"
        raise OSError(error.errno, reason, str(folder.parent)) from error
