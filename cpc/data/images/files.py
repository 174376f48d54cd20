"""Images decoded at every read, and the conversion of any image to a square.

B images, S side, C channels (3: RGB, 1: grey).
"""

import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated

import numpy as np
from jaxtyping import Int64, UInt8
from PIL import ExifTags, Image

from cpc.config.argument_rules import Choices, Count, checked
from cpc.data.images.table import ImageTable
from cpc.data.store.folders import map_in_order, name_a_few
from cpc.data.store.packed import ChannelStatistics, RowSource, statistics_of, value_sums

NARROW = 16384  # level of 65536; if a 16-bit image is darker, at most 65 of 256 levels remain
_MODES = {1: "L", 3: "RGB"}
# A JPEG file is decoded at this multiple of the requested size or more, so that the filter still averages real pixels.
_DRAFT_MARGIN = 2
_TRANSPOSITIONS = {  # number of the EXIF tag Orientation
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def read_square(
    table: ImageTable, row: int, image_size: int, num_channels: int, note_narrow: Callable[[int], object] | None = None
) -> UInt8[np.ndarray, "S S C"]:
    """Return the central square of one image of a table (of its first frame), upright, in RGB or grey, resized.

    The shorter side is scaled to `image_size` by Pillow's bicubic filter, with antialiasing. JPEG files of at least
    four times the size are decoded at 1/2, 1/4 or 1/8 of their own size: several times faster, by about one grey level
    different. `note_narrow` is called with the row if the image has 16 bits and no pixel of `NARROW` or more. A file
    that cannot be decoded, or whose range is unknown (see `convert_channels`), is a ValueError that names it.
    """
    with table.open(row) as image:
        draft = image.draft(None, (_DRAFT_MARGIN * image_size, _DRAFT_MARGIN * image_size))
        image.load()
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    if note_narrow is not None and is_wide_grey(image) and np.asarray(image).max(initial=0) < NARROW:
        note_narrow(row)
    try:
        image = convert_channels(image, num_channels)
    except ValueError as error:
        raise ValueError(f"{table.origin.root / table.names[row]}: {error}") from error
    # The last row and column of a JPEG decoded at reduced size may cover less than a whole pixel.
    width, height = draft[1][2:] if draft else image.size
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    if side == image_size:  # so that the image is not shifted by half a pixel, and blurred
        left, top = math.floor(left), math.floor(top)
    box = (left, top, left + side, top + side)
    square = image.resize((image_size, image_size), Image.Resampling.BICUBIC, box=box)
    if orientation in _TRANSPOSITIONS:
        square = square.transpose(_TRANSPOSITIONS[orientation])
    return np.asarray(square).reshape(image_size, image_size, num_channels)


def convert_channels(image: Image.Image, num_channels: int) -> Image.Image:
    """Convert an image to RGB or grey with 8 bits a channel.

    - Black and white become 0 and 255. Palettes are looked up. Grey becomes three equal channels.
    - Transparency (a channel, a palette or a single colour) is laid over white.
    - 16-bit grey is divided by 257 and rounded, so that 65535 becomes 255. Pillow converts 16-bit colour itself.
    - CMYK, YCbCr and Lab are converted by Pillow's formulas; embedded colour profiles are not applied.
    - Colour becomes grey as 0.299 R + 0.587 G + 0.114 B (ITU-R 601-2).

    Floating point and integers beyond 16 bits are refused, since their black and white are unknown.
    """
    if is_wide_grey(image):
        image = _narrow_grey(image)
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    if image.mode in ("LAB", "HSV", "CMYK", "YCbCr", "P"):
        image = image.convert("RGB")
    return image.convert(_MODES[num_channels])


def is_wide_grey(image: Image.Image) -> bool:
    """Return whether an image has grey pixels of more than 8 bits."""
    return image.mode in ("I", "F") or image.mode.startswith("I;16")


def _narrow_grey(image: Image.Image) -> Image.Image:
    values = np.asarray(image)
    if image.mode == "F" or values.min() < 0 or values.max() > 65535:
        found = f"has pixels of mode {image.mode} from {values.min():g} to {values.max():g}"
        raise ValueError(f"{found}, whose range is unknown; convert it to 8 or 16 bits")
    return Image.fromarray(((values.astype(np.uint32) + 128) // 257).astype(np.uint8))


NUM_STATISTICS_IMAGES = 1000
_STATISTICS_SEED = 0
_COMPARED_IMAGES = 32  # number of images that are compared when a run is resumed; decoding them takes about 0.1 s


class ImageFiles(RowSource):
    """The images of a table, decoded at every read, as squares of side S with C channels; a pack is faster."""

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
        """Return mean and deviation of each channel, in [0, 1], over these images or 1000 drawn with a fixed seed."""
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
        """Return the images of these rows; an image that cannot be decoded is a ValueError."""
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
            found = f"{len(names)} images have 16 bits and no pixel of {NARROW} or more"
            levels = "so they keep at most 65 of 256 levels: scale a range of 12 bits to 16"
            warnings.warn(f"{found}, {levels}:\n{name_a_few(names)}", stacklevel=4)

    def decode(self, row: int) -> Iterator[UInt8[np.ndarray, "1 S S C"]]:
        """Yield the square of one row."""
        yield read_square(self.table, row, self.image_size, self.num_channels, self._narrow.add)[None]

    def _sums(self, row: int) -> Int64[np.ndarray, "2 C"]:
        return value_sums(self.read([row]))
