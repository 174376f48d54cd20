"""Images decoded at every read, for sources whose pack would fill the disk. B images, S side, C channels."""

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated

import numpy as np
from jaxtyping import Int64, UInt8

from cpc.config.argument_rules import Choices, Count, checked
from cpc.data.images.pixels import NARROW, read_square
from cpc.data.images.table import ImageTable
from cpc.data.store.folders import name_a_few
from cpc.data.store.packed import RowSource
from cpc.data.store.parallel import map_in_order
from cpc.data.store.statistics import ChannelStatistics, statistics_of, value_sums

NUM_STATISTICS_IMAGES = 1000
_STATISTICS_SEED = 0
_COMPARED_IMAGES = 32  # number of images that are compared when a run is resumed; decoding them takes about 0.1 s


class ImageFiles(RowSource):
    """The images of a table, decoded at every read. A pack (`pack_images`) gives the same pixels faster.

    A file that cannot be decoded raises an error when it is read. A pack finds bad files before training, and can skip
    them.

    Args:
        table: the images, as `read_image_source` returns them.
        image_size: S, side of every image; smaller images are enlarged.
        num_channels: C, 3 for RGB, 1 for grey.

    Raises:
        ValueError: if `image_size` or `num_channels` is not legal.
    """

    noun, dtype = "image", "|u1"
    skipped: Mapping[int, str] = {}

    @checked
    def __init__(self, table: ImageTable, image_size: Count, num_channels: Annotated[int, Choices((1, 3))]) -> None:
        self.table = table
        self.image_size = image_size
        self.num_channels = num_channels
        self.shape = (image_size, image_size, num_channels)
        self._narrow: set[int] = set()

    def statistics(self, rows: Sequence[int] | np.ndarray) -> ChannelStatistics:
        """Return mean and deviation of each channel over these images, or over 1000 images drawn with a fixed seed.

        Pixels lie in [0, 1].

        Raises:
            ValueError: if there is no image, or a drawn image cannot be decoded.
        """
        if not len(rows):
            raise ValueError("there are no images to compute statistics from")
        num_sampled = min(NUM_STATISTICS_IMAGES, len(rows))
        sample = np.random.default_rng(_STATISTICS_SEED).choice(np.asarray(rows), num_sampled, replace=False)
        with self.decoding():
            sums = list(map_in_order(self._sums, np.sort(sample).tolist(), os.cpu_count() or 1))
        return statistics_of(np.stack(sums), num_sampled * self.image_size**2, 255)

    def content(self, rows: Sequence[int] | np.ndarray) -> Int64[np.ndarray, "n columns"]:
        """Return the pixel sums of 32 of these images, evenly spaced, to detect changes of the content."""
        positions = np.unique(np.linspace(0, len(rows) - 1, _COMPARED_IMAGES).astype(int))
        with self.decoding():
            return np.stack([self._sums(row).ravel() for row in np.asarray(rows)[positions].tolist()])

    def read(self, rows: Sequence[int] | np.ndarray) -> UInt8[np.ndarray, "B S S C"]:
        """Return the images of these rows.

        Raises:
            ValueError: if an image cannot be decoded. The message names the file.
        """
        images = np.zeros((len(rows), *self.shape), np.uint8)
        for position, row in enumerate(np.asarray(rows).tolist()):
            images[position] = next(self.decode(row))
        return images

    def rooms(self, num_workers: int, progress: bool) -> Sequence[int | str]:  # noqa: D102
        return [1] * len(self.table)

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """Load arrays, and at the end warn of 16-bit images that use only the darkest quarter of their range."""
        with self.table.origin.loaded():
            yield
        if self._narrow:
            names = [self.table.names[row] for row in sorted(self._narrow)]
            self._narrow.clear()
            warnings.warn(
                f"{len(names)} images have 16 bits and no pixel of {NARROW} or more, so they keep at most 65 of 256 "
                f"levels. If their range is narrower, such as 12 bits, scale it to 16:\n{name_a_few(names)}",
                stacklevel=4,
            )

    def decode(self, row: int) -> Iterator[UInt8[np.ndarray, "1 S S C"]]:
        """Yield the square of one row."""
        yield read_square(self.table, row, self.image_size, self.num_channels, self._narrow.add)[None]

    def _sums(self, row: int) -> Int64[np.ndarray, "2 C"]:
        return value_sums(self.read([row]))
