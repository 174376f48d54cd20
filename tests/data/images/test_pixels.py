import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from refusals import refuses
from torchvision.transforms import v2

from cpc.data import pack_images, read_image_source
from cpc.data.images.files import read_square


def read(path: Path, image_size: int, num_channels: int = 3) -> np.ndarray:
    table = read_image_source(path.parent, valid_share=0.0)
    return read_square(table, table.names.index(path.name), image_size, num_channels)


def smooth(width: int, height: int, seed: int = 0) -> Image.Image:
    noise = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), np.uint8)
    return Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)


def halves(mode: str, left: object, right: object, side: int = 8) -> Image.Image:
    image = Image.new(mode, (side, side), right)  # type: ignore[arg-type]
    image.paste(left, (0, 0, side // 2, side))  # type: ignore[arg-type]
    return image


def palette_with_transparency() -> Image.Image:
    image = halves("P", 0, 1)
    image.putpalette([255, 0, 0, 0, 128, 0])
    image.info["transparency"] = bytes([255, 0])  # the second colour is not seen
    return image


def wide_grey() -> Image.Image:
    values = np.full((8, 8), 65535, np.uint16)
    values[:, :4] = 257 * 99 + 129  # 99.502
    return Image.fromarray(values)


def semitransparent_grey() -> Image.Image:
    return halves("LA", (0, 255), (0, 51))  # a fifth of black over white


CASES: dict[str, tuple[Callable[[], Image.Image], str, tuple[int, int, int], tuple[int, int, int]]] = {
    "1": (lambda: halves("1", 0, 1), "a.png", (0, 0, 0), (255, 255, 255)),
    "L": (lambda: halves("L", 7, 200), "a.png", (7, 7, 7), (200, 200, 200)),
    "LA": (semitransparent_grey, "a.png", (0, 0, 0), (204, 204, 204)),
    "P": (lambda: halves("RGB", "red", "blue").quantize(2), "a.gif", (255, 0, 0), (0, 0, 255)),
    "P_transparent": (palette_with_transparency, "a.png", (255, 0, 0), (255, 255, 255)),
    "RGB": (lambda: halves("RGB", "red", (1, 2, 3)), "a.bmp", (255, 0, 0), (1, 2, 3)),
    "RGBA": (lambda: halves("RGBA", (255, 0, 0, 255), (9, 9, 9, 0)), "a.png", (255, 0, 0), (255, 255, 255)),
    "I;16": (wide_grey, "a.png", (100, 100, 100), (255, 255, 255)),
    "I;16_tiff": (wide_grey, "a.tif", (100, 100, 100), (255, 255, 255)),
    "I": (lambda: halves("I", 257 * 100, 65535), "a.tif", (100, 100, 100), (255, 255, 255)),
    "CMYK": (lambda: halves("CMYK", (0, 255, 255, 0), (0, 0, 0, 255)), "a.tif", (255, 0, 0), (0, 0, 0)),
}


@pytest.mark.parametrize("case", CASES)
def test_every_mode_becomes_rgb_and_grey(tmp_path: Path, case: str) -> None:
    make, name, left, right = CASES[case]
    image = make()
    image.save(tmp_path / name)
    with Image.open(tmp_path / name) as written:
        assert written.mode == case.partition("_")[0], "the file is not of the mode that is tested"
    pixels = read(tmp_path / name, 8)
    assert pixels.dtype == np.uint8
    np.testing.assert_array_equal(pixels[:, :4], np.broadcast_to(np.uint8(left), (8, 4, 3)))
    np.testing.assert_array_equal(pixels[:, 4:], np.broadcast_to(np.uint8(right), (8, 4, 3)))
    grey = read(tmp_path / name, 8, num_channels=1)
    assert grey.shape == (8, 8, 1)
    for column, colour in ((0, left), (7, right)):
        np.testing.assert_allclose(grey[:, column], np.dot((0.299, 0.587, 0.114), colour), atol=0.51)


def test_a_transparent_colour_without_a_channel_is_white(tmp_path: Path) -> None:
    halves("RGB", "red", "green").save(tmp_path / "a.png", transparency=(0, 128, 0))
    pixels = read(tmp_path / "a.png", 8)
    assert pixels[0, 0].tolist() == [255, 0, 0]
    assert pixels[0, 7].tolist() == [255, 255, 255]
    # Adobe's inverted CMYK is turned back.
    Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(tmp_path / "a.jpg", quality=100)
    np.testing.assert_allclose(read(tmp_path / "a.jpg", 16)[8, 8], (255, 0, 0), atol=3)


@pytest.mark.parametrize("mode", ["F", "I"])
def test_values_without_a_known_black_and_white_are_refused(tmp_path: Path, mode: str) -> None:
    Image.new(mode, (8, 8), 70000).save(tmp_path / "a.tif")
    refuses(rf"a\.tif: has pixels of mode {mode} from 70000 to 70000.*convert it", read, tmp_path / "a.tif", 8)


@pytest.mark.parametrize("suffix", ["png", "jpg", "tif", "webp"])
@pytest.mark.parametrize("orientation", [1, 2, 3, 4, 5, 6, 7, 8, 42])
def test_exif_orientation_is_applied(tmp_path: Path, orientation: int, suffix: str) -> None:
    """Against the EXIF standard: what the first row and the first column of the file are in the picture."""
    shown = np.full((16, 16, 3), 128, np.uint8)
    shown[:8, :8], shown[:8, 8:] = (255, 0, 0), (0, 255, 0)  # red top left, green top right
    stored = {
        2: shown[:, ::-1],
        3: shown[::-1, ::-1],
        4: shown[::-1],
        5: shown.transpose(1, 0, 2),
        6: np.rot90(shown),  # the viewer turns it clockwise
        7: np.rot90(shown, 2).transpose(1, 0, 2),
        8: np.rot90(shown, -1),
    }.get(orientation, shown)
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"webp": {"lossless": True}, "jpg": {"quality": 100, "subsampling": 0}}.get(suffix, {})
    Image.fromarray(np.ascontiguousarray(stored)).save(tmp_path / f"a.{suffix}", exif=exif, **options)
    np.testing.assert_allclose(read(tmp_path / f"a.{suffix}", 16), shown, atol=6 if suffix == "jpg" else 0)


@pytest.mark.parametrize("size", [(90, 60), (61, 90), (33, 33), (32, 32), (8, 8), (20, 11), (33, 32), (1, 1)])
def test_the_shorter_side_is_resized_and_the_centre_cut_out(tmp_path: Path, size: tuple[int, int]) -> None:
    image = smooth(*size)
    image.save(tmp_path / "a.png")
    resize = v2.Compose([v2.Resize(32, v2.InterpolationMode.BICUBIC), v2.CenterCrop(32)])
    # torchvision rounds the longer side and the margin: up to half a pixel aside, on gradients of 256 in 6th parts.
    steepest = max(np.abs(np.diff(np.asarray(resize(image), np.int32), axis=axis)).max() for axis in (0, 1))
    np.testing.assert_allclose(
        read(tmp_path / "a.png", 32), np.asarray(resize(image)), atol=0 if min(size) == 32 else 0.5 * steepest + 1
    )


def test_shrinking_averages(tmp_path: Path) -> None:
    """A chessboard of single pixels becomes grey; without antialiasing it stays black and white."""
    board = np.indices((64, 64)).sum(axis=0) % 2 * np.uint8(255)
    Image.fromarray(board.astype(np.uint8)).save(tmp_path / "a.png")
    inner = read(tmp_path / "a.png", 16, 1)[1:-1, 1:-1]
    np.testing.assert_allclose(inner, 127.5, atol=1)


@pytest.mark.parametrize("orientation", [1, 3, 6])
@pytest.mark.parametrize("size", [(517, 389), (640, 480), (131, 389)])
def test_large_jpegs_at_a_fraction(tmp_path: Path, size: tuple[int, int], orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    smooth(*size).save(tmp_path / "a.jpg", exif=exif, quality=95)
    with Image.open(tmp_path / "a.jpg") as image:
        image.load()
    image.save(tmp_path / "b.png", exif=exif)
    fast, slow = (read(tmp_path / name, 32).astype(np.int32) for name in ("a.jpg", "b.png"))
    assert np.abs(fast - slow).mean() < 0.6
    assert np.abs(fast - slow).max() <= 4


def test_the_first_frame_of_an_animation_counts(tmp_path: Path) -> None:
    first, second = (Image.new("RGB", (8, 8), colour) for colour in ("red", "blue"))
    first.save(tmp_path / "a.gif", save_all=True, append_images=[second])
    assert read(tmp_path / "a.gif", 8)[4, 4].tolist() == [255, 0, 0]


@pytest.mark.parametrize(
    ("shape", "message"), [((0, 3), "image_size=0 must be at least 1"), ((32, 2), "num_channels=2 is not one of 1, 3")]
)
def test_impossible_shapes_are_refused(tmp_path: Path, shape: tuple[int, int], message: str) -> None:
    smooth(8, 8).save(tmp_path / "a.png")
    refuses(message, pack_images, read_image_source(tmp_path, valid_share=0.0), *shape)
    assert not (tmp_path / ".cpc_cache").exists()


def cut_off(content: bytes) -> bytes:
    return content[: len(content) // 2]


def encoded(suffix: str) -> bytes:
    stream = io.BytesIO()
    smooth(64, 64).save(stream, suffix)
    return stream.getvalue()


BAD_FILES: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "truncated_jpeg": ("a.jpg", lambda: cut_off(encoded("jpeg")), "truncated"),
    "truncated_png": ("a.png", lambda: cut_off(encoded("png")), "damaged, truncated"),
    "text": ("a.png", lambda: b"words " * 100, "not an image .its format is unknown to Pillow"),
    "empty": ("a.gif", lambda: b"", r"is empty \(0 bytes\)"),
    "broken_chunk": ("a.png", lambda: encoded("png").replace(b"IDAT", b"\0\0\0\0"), "damaged"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_file_is_named(tmp_path: Path, case: str) -> None:
    name, content, reason = BAD_FILES[case]
    (tmp_path / name).write_bytes(content())
    refuses(rf"^{tmp_path / name}: .*{reason}", read, tmp_path / name, 16)
