"""A source of images decoded once: one uint8 memory map of squares of one size, the default for training.

The place of a pack is named by a hash of what went into it (names, sizes and times of the files, the size wanted), so
that it is built once, reused while nothing changed, and never stale. Labels and splits are the table's: other ones need
no other pack. B images of a batch, n of all, S side, C channels.
"""

import errno
import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8
from tqdm import tqdm

from cpc.data.images.pixels import check_shape, read_square
from cpc.data.images.statistics import ChannelStatistics, channel_statistics, pixel_sums
from cpc.data.images.table import ImageTable
from cpc.data.store.atomic_folder import build_atomically
from cpc.data.store.folders import name_a_few
from cpc.data.store.parallel import map_in_order

_FORMAT = 1
# Images that a thread decodes at a time.
_BLOCK_IMAGES, _BLOCK_BYTES = 64, 2**20


class PackedImages:
    """The images of a table in one uint8 memory map, as `pack_images` writes it.

    A copy sent to another process carries the table alone and opens the map anew.

    Args:
        folder: the pack's folder (`images.uint8`, `sums.npy` and `index.json`).
        table: the table that it was made of.

    Attributes:
        image_size: S, side of every image.
        num_channels: C, 3 for RGB, 1 for grey.
        skipped: row -> what is wrong with its image; `rows` leaves these out.

    Raises:
        ValueError: if the folder holds no complete pack, or not one of this table.
    """

    def __init__(self, folder: str | Path, table: ImageTable) -> None:
        self.folder = Path(folder)
        self.table = table
        index = _read_index(self.folder)
        if index["num_images"] != len(table):
            raise ValueError(f"{folder} holds {index['num_images']} images, the table {len(table)}; pack it anew")
        self.image_size: int = index["image_size"]
        self.num_channels: int = index["num_channels"]
        self.skipped: dict[int, str] = index["skipped"]
        self._num_packed = len(table)
        self._places = np.arange(len(table))
        self._map: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.table)

    @property
    def labels(self) -> Int64[np.ndarray, " n"]:
        """Position in `classes`, or -1 where unknown."""
        return self.table.labels

    @property
    def classes(self) -> list[str]:
        """Name of each class."""
        return self.table.classes

    @property
    def splits(self) -> list[str]:
        """Each image's split: train, valid, test or unlabelled."""
        return self.table.splits

    @property
    def images(self) -> UInt8[np.ndarray, "n S S C"]:
        """All images: a view of the map on disk; for a subset of scattered rows, a copy in memory."""
        first = int(self._places[0]) if len(self) else 0
        if np.array_equal(self._places, np.arange(first, first + len(self))):
            return self._opened()[first : first + len(self)]
        return self._opened()[self._places]

    @property
    def statistics(self) -> ChannelStatistics:
        """Mean and standard deviation of each channel over all pixels in [0, 1], exact, without skipped images.

        Held-out images count like any others: take the subset that is trained on first.

        Raises:
            ValueError: if there is no image.
        """
        places = np.delete(self._places, list(self.skipped))
        if not len(places):
            raise ValueError(f"none of {len(self)} images can be used, so they have no statistics")
        return channel_statistics(np.load(self.folder / "sums.npy")[places], self.image_size**2)

    def rows(self, split: str | None) -> Int64[np.ndarray, " rows"]:
        """Which rows are of one split and not skipped; None: of any.

        Raises:
            ValueError: if there is none; the message lists the splits there are.
        """
        rows = self.table.rows(split)
        usable = rows[~np.isin(rows, list(self.skipped))]
        if not len(usable):
            raise ValueError(
                f"all {len(rows)} images of split {split!r} were skipped:\n{name_a_few(list(self.skipped.values()))}"
            )
        return usable

    def subset(self, rows: Sequence[int] | np.ndarray) -> "PackedImages":
        """These rows alone, numbered anew in this order."""
        view = object.__new__(PackedImages)
        view.__dict__.update(self.__dict__)
        chosen = np.arange(len(self))[rows]
        view.table = self.table.subset(chosen)
        view._places = self._places[chosen]
        view.skipped = {new: self.skipped[old] for new, old in enumerate(chosen.tolist()) if old in self.skipped}
        return view

    def read(self, rows: Sequence[int] | np.ndarray) -> UInt8[np.ndarray, "B S S C"]:
        """The images of these rows, a copy.

        Raises:
            ValueError: if one of them was skipped.
        """
        if self.skipped:
            bad = [self.skipped[row] for row in np.asarray(rows).tolist() if row in self.skipped]
            if bad:
                raise ValueError(
                    f"{len(bad)} of these images were skipped; read those that rows() names:\n{name_a_few(bad)}"
                )
        return self._opened()[self._places[np.asarray(rows, np.int64)]]

    def _opened(self) -> np.ndarray:
        if self._map is None:
            shape = (self._num_packed, self.image_size, self.image_size, self.num_channels)
            # A plain view of the map: slices of a numpy.memmap cost several microseconds each.
            self._map = np.asarray(np.memmap(self.folder / "images.uint8", np.uint8, mode="r", shape=shape))
        return self._map

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_map": None}


def pack_images(
    table: ImageTable,
    image_size: int,
    num_channels: int,
    cache_dir: str | Path | None = None,
    *,
    skip_bad: bool = False,
    num_workers: int | None = None,
    progress: bool = True,
) -> PackedImages:
    """Decodes every image of a table to its central square of one size, or reuses what an earlier call decoded.

    Row `i` of the result is row `i` of the table; `read_square` says how modes and sizes become one. Images smaller
    than `image_size` are enlarged. An interrupted call leaves no pack behind; the next one starts anew.

    Args:
        table: the images, as `read_image_source` returns them.
        image_size: side of the squares, pixels.
        num_channels: 3 for RGB, 1 for grey.
        cache_dir: folder that holds packs, each in a folder of its own; `.cpc_cache` beside the images unless given.
        skip_bad: leave images that cannot be used out of `rows`, and warn how many, instead of raising.
        num_workers: threads that decode; all cores unless given.
        progress: show a progress bar.

    Raises:
        ValueError: naming the first few bad files (missing, damaged, truncated, no image). The good ones are packed all
            the same, so that a second call with `skip_bad` has nothing left to do.
        OSError: if the disk is full, or the place cannot be written; nothing stays behind.
    """
    check_shape(image_size, num_channels)
    packs = table.origin.root / ".cpc_cache" if cache_dir is None else Path(cache_dir)
    wanted = f"{_FORMAT} {image_size} {num_channels} {table.fingerprint()}"
    folder = packs / f"images-{hashlib.sha256(wanted.encode()).hexdigest()[:24]}"
    if not _is_complete(folder):
        _build(table, image_size, num_channels, folder, num_workers or os.cpu_count() or 1, progress)
    packed = PackedImages(folder, table)
    if packed.skipped:
        found = f"{len(packed.skipped)} of {len(packed)} images cannot be used:\n"
        found += name_a_few(list(packed.skipped.values()))
        if not skip_bad or len(packed.skipped) == len(packed):
            raise ValueError(f"{found}\nrepair or remove them, or set `skip_bad` to go on without them")
        warnings.warn(f"went on without {found}", stacklevel=2)
    return packed


def _read_index(folder: Path) -> dict[str, Any]:
    try:
        index: dict[str, Any] = json.loads((folder / "index.json").read_text(encoding="utf-8"))
        num_bytes = {name: (folder / name).stat().st_size for name in ("images.uint8", "sums.npy")}
        if index["format"] != _FORMAT or index["num_bytes"] != num_bytes:
            raise ValueError(f"its format is {index['format']}, its sizes {num_bytes} of {index['num_bytes']} bytes")
        num_pixels = index["num_images"] * index["image_size"] ** 2
        if num_pixels * index["num_channels"] != num_bytes["images.uint8"]:
            raise ValueError(f"{num_pixels} pixels of {index['num_channels']} channels do not make its size")
        index["skipped"] = {int(row): reason for row, reason in index["skipped"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder} holds no complete pack: {error}") from error
    return index


def _is_complete(folder: Path) -> bool:
    try:
        _read_index(folder)
    except ValueError:
        return False
    return True


def _build(
    table: ImageTable, image_size: int, num_channels: int, folder: Path, num_workers: int, progress: bool
) -> None:
    """Writes the pack beside its place and moves it there when it is complete."""
    num_image_bytes = image_size**2 * num_channels
    num_bytes = len(table) * num_image_bytes
    sums = np.zeros((len(table), 2, num_channels), np.int64)
    skipped: dict[int, str] = {}

    def decode(rows: range) -> tuple[np.ndarray, dict[int, str]]:
        images = np.zeros((len(rows), image_size, image_size, num_channels), np.uint8)
        problems = {}
        for position, row in enumerate(rows):
            try:
                images[position] = read_square(table, row, image_size, num_channels)
            except ValueError as error:
                problems[row] = str(error)
        return images, problems

    per_block = min(_BLOCK_IMAGES, max(1, _BLOCK_BYTES // num_image_bytes))
    blocks = [range(first, min(first + per_block, len(table))) for first in range(0, len(table), per_block)]
    try:
        with build_atomically(folder, _is_complete, "cache_dir") as unfinished:
            if num_bytes > shutil.disk_usage(unfinished).free:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            with (
                table.origin.loaded(),
                tqdm(total=len(table), desc="pack: decode", unit="image", disable=not progress) as bar,
                (unfinished / "images.uint8").open("wb") as stream,
            ):
                for rows, (images, problems) in zip(blocks, map_in_order(decode, blocks, num_workers), strict=True):
                    stream.write(images.data)
                    sums[rows.start : rows.stop] = pixel_sums(images)
                    skipped |= problems
                    bar.update(len(rows))
            np.save(unfinished / "sums.npy", sums)
            index = {
                "format": _FORMAT,
                "image_size": image_size,
                "num_channels": num_channels,
                "num_images": len(table),
                "num_bytes": {"images.uint8": num_bytes, "sums.npy": (unfinished / "sums.npy").stat().st_size},
                "skipped": skipped,
            }
            (unfinished / "index.json").write_text(json.dumps(index), encoding="utf-8")
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        free = shutil.disk_usage(folder.parent).free
        raise OSError(
            error.errno,
            f"{error.strerror}: the packed images take {num_bytes / 1e9:.3f} GB, {free / 1e9:.3f} GB are free; "
            "make room, name a place on another disk with `cache_dir`, or decode while training (packed=False)",
            str(folder.parent),
        ) from error
