"""Conversion of an image of any mode and size to a square of uint8 pixels. S side, C channels (3: RGB, 1: grey)."""

import math
from collections.abc import Callable

import numpy as np
from jaxtyping import UInt8
from PIL import ExifTags, Image

from cpc.data.images.table import ImageTable

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
    table: ImageTable,
    row: int,
    image_size: int,
    num_channels: int,
    note_narrow: Callable[[int], object] | None = None,
) -> UInt8[np.ndarray, "S S C"]:
    """Return the central square of one image of a table (of its first frame), upright, in RGB or grey, resized.

    The shorter side is scaled to `image_size` by Pillow's bicubic filter, with antialiasing for larger images. An image
    that already has this size is copied. JPEG files of at least four times the size are decoded at 1/2, 1/4 or 1/8 of
    their own size, which is several times faster and changes pixels by about one grey level.

    Args:
        table: the images.
        row: row of the image.
        image_size: S.
        num_channels: C.
        note_narrow: called with the row if the image has 16 bits and no pixel of `NARROW` or more.

    Raises:
        ValueError: if the file cannot be decoded, or its range is unknown (see `convert_channels`). The message names
            the file.
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

    Raises:
        ValueError: for floating point, and for integers beyond 16 bits, since their black and white are unknown.
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
        raise ValueError(
            f"has pixels of mode {image.mode} from {values.min():g} to {values.max():g}, whose range is unknown; "
            "convert it to 8 or 16 bits"
        )
    return Image.fromarray(((values.astype(np.uint32) + 128) // 257).astype(np.uint8))
