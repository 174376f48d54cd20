"""Images decoded once: a pack of uint8 squares of one size, the default for training.

Labels and splits are the table's: other ones need no other pack. B images of a batch, n of all, S side, C channels.
"""

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from cpc.data.images.files import ImageFiles
from cpc.data.images.table import ImageTable, TableImages
from cpc.data.store.folders import name_a_few
from cpc.data.store.packed import FORMAT, PackedRows, pack_rows
from cpc.data.store.statistics import ChannelStatistics


class PackedImages(PackedRows, TableImages):
    """The images of a table in one uint8 memory map, as `pack_images` writes it.

    Attributes:
        image_size: S, side of every image.
        num_channels: C, 3 for RGB, 1 for grey.
        skipped: row -> what is wrong with its image; `rows` leaves these out.

    Raises:
        ValueError: if the folder holds no complete pack, or not one of this table.
    """

    def __init__(self, folder: str | Path, table: ImageTable) -> None:
        super().__init__(folder)
        if len(self) != len(table):
            raise ValueError(f"{folder} holds {len(self)} images, the table {len(table)}; pack it again")
        self.table = table

    @property
    def statistics(self) -> ChannelStatistics:
        """Mean and standard deviation of each channel over all pixels in [0, 1], exact, without skipped images.

        Raises:
            ValueError: if there is no image.
        """
        if not self.lengths.any():
            raise ValueError(f"none of {len(self)} images can be used, so they have no statistics")
        return self.statistics_over(255)

    def subset(self, rows: Sequence[int] | np.ndarray) -> "PackedImages":
        """These rows alone, numbered from 0 in this order."""
        view = super().subset(rows)
        view.table = self.table.subset(rows)
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
        return self.elements[self._offsets[np.asarray(rows, np.int64)]]

    def _open(self, index: Mapping[str, Any]) -> None:
        super()._open(index)
        self.image_size, _, self.num_channels = self.shape


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

    Row `i` of the result is row `i` of the table; `read_square` says how modes and sizes become one. Images smaller
    than `image_size` are enlarged. An interrupted call leaves no pack behind; the next one starts again.

    Args:
        table: the images, as `read_image_source` returns them.
        image_size: side of the squares, pixels.
        num_channels: 3 for RGB, 1 for grey.
        cache_dir: folder that holds packs, each in a folder of its own; `.cpc_cache` beside the images unless given.
        skip_bad: leave images that cannot be used out of `rows`, and warn how many, instead of raising.
        num_workers: threads that decode; all cores unless given.
        progress: show a progress bar.

    Raises:
        ValueError: naming the first few bad files; the good ones are packed all the same.
        OSError: if the disk is full, or the place cannot be written; nothing stays behind.
    """
    source = ImageFiles(table, image_size, num_channels)
    packs = table.origin.root / ".cpc_cache" if cache_dir is None else Path(cache_dir)
    wanted = f"{FORMAT} {image_size} {num_channels} {table.fingerprint()}"
    folder = packs / f"images-{hashlib.sha256(wanted.encode()).hexdigest()[:24]}"
    open_pack = partial(PackedImages, table=table)
    return pack_rows(source, folder, open_pack, skip_bad=skip_bad, num_workers=num_workers, progress=progress)
