"""Images decoded once into a pack of uint8 squares of one size, the default for training. B images, S side, C channels.

Labels and splits are in the table, not in the pack, and can change without a new pack.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from cpc.data.images.files import ImageFiles
from cpc.data.images.table import FolderImages, ImageTable
from cpc.data.store.atomic import json_text
from cpc.data.store.folders import refuse
from cpc.data.store.packed import FORMAT, ChannelStatistics, PackedRows, check_skipped, pack_rows
from cpc.data.store.shards import Shards, list_of, open_table

TABLE_NAME = "images.json"  # of images in shards
_COLUMNS = {"names": str, "splits": str, "labels": int, "classes": str, "sequences": int}


class PackedImages(PackedRows):
    """Images in one uint8 memory map, `image_size` a side with `num_channels`; row `i` is row `i` of the table."""

    def statistics(self, rows: Sequence[int] | np.ndarray) -> ChannelStatistics:
        """Return the exact mean and deviation of each channel over these images, in [0, 1], without skipped ones."""
        chosen = self.subset(rows)
        if not chosen.lengths.any():
            raise ValueError(f"none of {len(chosen)} images can be used, so there are no statistics")
        return chosen.statistics_over(255)

    def read(self, rows: Sequence[int] | np.ndarray) -> UInt8[np.ndarray, "B S S C"]:
        """Return a copy of the images of these rows, of which none may have been skipped."""
        rows = np.asarray(rows, np.int64)
        refuse("of these images were skipped", [self.skipped[row] for row in rows.tolist() if row in self.skipped])
        return self.elements[self._offsets[rows]]


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
    """Decode every image of a table to its central square of one size, or reuse what an earlier call decoded.

    `read_square` describes the conversion of modes and sizes. Images in shards are not decoded again.

    Args:
        table: the images, as `read_image_source` returns them.
        image_size: side of the squares, pixels; smaller images are enlarged.
        num_channels: 3 for RGB, 1 for grey.
        cache_dir: parent folder of all packs; None: `.cpc_cache` beside the images.
        skip_bad: leave out images that cannot be used, and warn how many.
        num_workers: number of threads that decode; None: one per core.
        progress: show a progress bar.
    """
    if table.origin.shards is not None:
        return _open_sharded(table.origin.shards, len(table), image_size, num_channels, skip_bad)
    source = ImageFiles(table, image_size, num_channels)
    packs = table.origin.root / ".cpc_cache" if cache_dir is None else Path(cache_dir)
    key = f"{FORMAT} {image_size} {num_channels} {table.fingerprint()}"
    folder = packs / f"images-{hashlib.sha256(key.encode()).hexdigest()[:24]}"
    return pack_rows(source, folder, PackedImages, skip_bad=skip_bad, num_workers=num_workers, progress=progress)


def _open_sharded(shards: Shards, num_images: int, image_size: int, num_channels: int, skip_bad: bool) -> PackedImages:
    packed = PackedImages(shards.folder, shards)
    if packed.shape != (image_size, image_size, num_channels):
        found = f"{shards.source} holds squares of {packed.shape[0]} pixels in {packed.shape[2]} channels"
        raise ValueError(f"{found}, but `load_size` {image_size} in {num_channels} channels is needed")
    check_skipped(packed, "image", skip_bad, num_images)
    return packed


def write_table(table: ImageTable) -> bytes:
    """Return the columns of a table as JSON, for shards."""
    return json_text({"format": 1, **{name: getattr(table, name) for name in _COLUMNS}}).encode()


def read_sharded_images(source: str | Path, cache_dir: str | Path | None, cache_gb: float) -> ImageTable:
    """Return the table of images in shards, equal to the table that the shards were written from."""
    shards = Shards(source, cache_dir, cache_gb)
    with open_table(shards, TABLE_NAME, "images") as table:
        columns: dict[str, Any] = {name: list_of(kind, table[name]) for name, kind in _COLUMNS.items()}
        columns |= {name: np.array(columns[name], np.int64) for name in ("labels", "sequences")}
        return ImageTable(**columns, origin=FolderImages(shards.folder, shards))
