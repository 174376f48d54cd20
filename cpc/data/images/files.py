"""Images decoded whenever they are read, for sources whose pack would fill the disk. B images, S side, C channels."""

import os
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64, UInt8

from cpc.data.images.pixels import check_shape, read_square
from cpc.data.images.table import ImageTable, TableColumns
from cpc.data.store.parallel import map_in_order
from cpc.data.store.statistics import ChannelStatistics, statistics_of, value_sums

NUM_STATISTICS_IMAGES = 1000
_STATISTICS_SEED = 0


class ImageFiles(TableColumns):
    """The images of a table as `PackedImages` gives them, decoded on the fly: bit for bit the same, but slower.

    A file that cannot be decoded is an error when it is read: a pack finds bad files beforehand, and can skip them.

    Args:
        table: the images, as `read_image_source` returns them.
        image_size: S, side of every image; smaller ones are enlarged.
        num_channels: C, 3 for RGB, 1 for grey.

    Raises:
        ValueError: if `image_size` or `num_channels` is not legal.
    """

    def __init__(self, table: ImageTable, image_size: int, num_channels: int) -> None:
        check_shape(image_size, num_channels)
        self.table = table
        self.image_size = image_size
        self.num_channels = num_channels
        self.skipped: dict[int, str] = {}
        self._statistics: ChannelStatistics | None = None

    @property
    def statistics(self) -> ChannelStatistics:
        """Mean and standard deviation of each channel, pixels in [0, 1], over 1000 images drawn with a fixed seed.

        An estimate, unless there are no more images than that; it takes the time of decoding these, once.

        Raises:
            ValueError: if there is no image, or one that was drawn cannot be decoded.
        """
        if not len(self):
            raise ValueError("no image is chosen, so there are no statistics")
        if self._statistics is None:
            num_drawn = min(NUM_STATISTICS_IMAGES, len(self))
            drawn = np.random.default_rng(_STATISTICS_SEED).choice(len(self), num_drawn, replace=False)
            with self.table.origin.loaded():
                sums = list(map_in_order(self._sums, np.sort(drawn).tolist(), os.cpu_count() or 1))
            self._statistics = statistics_of(np.stack(sums), num_drawn * self.image_size**2, 255)
        return self._statistics

    def rows(self, split: str | None) -> Int64[np.ndarray, " rows"]:
        """Which rows are of one split; None: all; raises as `ImageTable.rows` does."""
        return self.table.rows(split)

    def subset(self, rows: Sequence[int] | np.ndarray) -> "ImageFiles":
        """These rows alone, numbered anew in this order."""
        return ImageFiles(self.table.subset(rows), self.image_size, self.num_channels)

    def read(self, rows: Sequence[int] | np.ndarray) -> UInt8[np.ndarray, "B S S C"]:
        """The images of these rows.

        Raises:
            ValueError: naming the file, if one cannot be decoded.
        """
        images = np.zeros((len(rows), self.image_size, self.image_size, self.num_channels), np.uint8)
        for position, row in enumerate(np.asarray(rows).tolist()):
            images[position] = read_square(self.table, row, self.image_size, self.num_channels)
        return images

    def _sums(self, row: int) -> Int64[np.ndarray, "2 C"]:
        return value_sums(self.read([row]))
