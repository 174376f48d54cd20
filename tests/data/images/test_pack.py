import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from refusals import refuses

import cpc.data.images.pack
import cpc.data.store.packed
from cpc.data import ImageTable, PackedImages, pack_images, read_image_source
from cpc.data.images.files import read_square


def write_noise(path: Path, width: int = 24, height: int = 16) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(list(path.name.encode()))
    Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8)).save(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    for number in range(8):
        split = "train" if number < 5 else "test"
        write_noise(folder / split / f"class {number % 2}" / f"{number}.png", 16 + 4 * number)
    return folder


@pytest.fixture
def table(root: Path) -> ImageTable:
    return read_image_source(root, valid_share=0.0)


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def pixels_of(packed: PackedImages) -> np.ndarray:
    return packed.read(np.arange(len(packed)))


def fail(*_: object, **__: object) -> None:
    raise AssertionError("must not be called")


@pytest.mark.parametrize("num_channels", [1, 3])
def test_packed_equals_decoded(table: ImageTable, num_channels: int) -> None:
    packed = pack_images(table, 16, num_channels, progress=False)
    assert pixels_of(packed).shape == (8, 16, 16, num_channels)
    assert pixels_of(packed).dtype == np.uint8
    assert (packed.shape, len(packed), packed.skipped) == ((16, 16, num_channels), 8, {})
    for row in range(8):
        np.testing.assert_array_equal(pixels_of(packed)[row], read_square(table, row, 16, num_channels))
    np.testing.assert_array_equal(packed.read([6, 0, 6]), pixels_of(packed)[[6, 0, 6]])
    assert packed.read([]).shape == (0, 16, 16, num_channels)


def test_what_is_read_is_a_copy(table: ImageTable) -> None:
    packed = pack_images(table, 16, 3, progress=False)
    images = packed.read([0])
    images[:] = 0
    assert pixels_of(packed)[0].any()
    with pytest.raises(ValueError, match="read-only"):
        packed.elements[0] = 0


def test_more_images_than_a_block_keep_their_order(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (200, 7, 7), np.uint8)
    np.savez(tmp_path / "a.npz", images=images)
    table = read_image_source(tmp_path / "a.npz")
    packed = pack_images(table, 7, 1, num_workers=5, progress=False)
    np.testing.assert_array_equal(pixels_of(packed)[..., 0], images)  # array rows of the right size: to the bit
    np.testing.assert_array_equal(pixels_of(pack_images(table, 7, 3, progress=False)), np.stack([images] * 3, axis=-1))


def test_statistics_of_bright_images_do_not_cancel(tmp_path: Path) -> None:
    """Far from zero and nearly constant, where E x^2 - (E x)^2 in float32 has no digit left."""
    images = np.full((1000, 32, 32), 255, np.uint8)
    images[0, 0, 0] = 254
    np.savez(tmp_path / "a.npz", images=images)
    mean, std = pack_images(read_image_source(tmp_path / "a.npz"), 32, 1, progress=False).statistics(range(1000))
    num_values = images.size
    assert 1 - mean.item() == pytest.approx(1 / num_values / 255, rel=1e-6)
    assert std.item() == pytest.approx(((num_values - 1) / num_values**2) ** 0.5 / 255, rel=1e-12)


def test_a_pack_is_another_if_an_image_or_an_option_changes(table: ImageTable) -> None:
    """That it is kept else, tests/data/audio/test_pack.py shows; it lies among the images and is none of them."""
    first = pack_images(table, 16, 3, progress=False)
    root = table.origin.root
    assert pack_images(read_image_source(root, valid_share=0.4), 16, 3, progress=False).folder == first.folder
    folders = {first.folder}
    folders.add(pack_images(table, 17, 3, progress=False).folder)
    folders.add(pack_images(table, 16, 1, progress=False).folder)
    reordered = [table.names[row] for row in (1, 0, 2, 3, 4, 5, 6, 7)]
    folders.add(pack_images(replace(table, names=reordered), 16, 3, progress=False).folder)
    path = root / table.names[2]
    before = pixels_of(first)[2].copy()
    Image.open(path).transpose(Image.Transpose.ROTATE_180).save(path)
    os.utime(path, ns=(1, 1))
    changed = pack_images(table, 16, 3, progress=False)
    np.testing.assert_array_equal(pixels_of(changed)[2], before[::-1, ::-1])
    assert len(folders | {changed.folder}) == 5


def test_arrays_of_one_size_and_time_are_told_apart_by_their_content(tmp_path: Path) -> None:
    """Data sets of one shape, unpacked from archives that give every file the same time."""
    packs = []
    for value in (0, 1):
        path = tmp_path / str(value) / "train.npz"
        path.parent.mkdir()
        np.savez(path, images=np.full((4, 8, 8), value, np.uint8))
        os.utime(path, ns=(1, 1))
        packs.append(pack_images(read_image_source(path.parent, valid_share=0.0), 8, 1, tmp_path / "c", progress=False))
    assert [pixels_of(packed).max() for packed in packs] == [0, 1]
    path.rename(tmp_path / "train.npz")
    moved = pack_images(read_image_source(tmp_path, valid_share=0.0), 8, 1, tmp_path / "c", progress=False)
    assert moved.folder == packs[1].folder


def test_bad_images_are_named_or_skipped(root: Path, table: ImageTable, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / table.names[1]).write_text("words")
    content = (root / table.names[6]).read_bytes()
    (root / table.names[6]).write_bytes(content[: len(content) // 2])
    complaint = r"2 of 8 images cannot be used:\n.*5\.png: .*not an image(?s:.*)1\.png: .*truncated(?s:.*)skip_bad"
    refuses(complaint, pack_images, table, 16, 3, progress=False)
    monkeypatch.setattr(cpc.data.store.packed, "_build", fail)  # nothing is decoded twice
    with pytest.warns(UserWarning, match="went on without 2 of 8 images"):
        packed = pack_images(table, 16, 3, skip_bad=True, progress=False)
    assert list(packed.skipped) == [1, 6]
    assert "1.png" in packed.skipped[6]
    refuses("1 of these images were skipped", packed.read, [0, 1])
    np.testing.assert_array_equal(packed.read([7])[0], read_square(table, 7, 16, 3))
    good = packed.read([0, 2, 3, 4, 5, 7]).astype(np.float64) / 255
    mean, std = packed.statistics(range(8))
    np.testing.assert_allclose(mean, good.mean(axis=(0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(std, good.std(axis=(0, 1, 2)), rtol=1e-12)
    chosen = packed.subset([7, 6])
    assert chosen.skipped == {1: packed.skipped[6]}
    refuses("1 of these", chosen.read, [1])
    refuses("2 of 8", pack_images, table, 16, 3, progress=False)


def test_arrays_that_change_after_reading_are_no_bad_images(tmp_path: Path) -> None:
    images = np.zeros((4, 8, 8), np.uint8)
    np.savez(tmp_path / "a.npz", images=images)
    table = read_image_source(tmp_path / "a.npz", valid_share=0.0)
    np.savez(tmp_path / "a.npz", images=images + np.uint8(1))
    refuses("have changed since they were read", pack_images, table, 8, 1, skip_bad=True, progress=False)
    assert files_in(tmp_path / ".cpc_cache") == []


def test_images_of_16_bits_that_use_few_of_them_are_counted(tmp_path: Path) -> None:
    """14 bits in 16 keep 64 of 256 levels; a dark corner of a bright image is no reason to warn."""
    ramp = np.linspace(0, 1, 144).reshape(12, 12)
    for name, highest in (("narrow", 2**14 - 1), ("full", 2**16 - 1)):
        Image.fromarray((ramp * highest).astype(np.uint16)).save(tmp_path / f"{name}.png")
    table = read_image_source(tmp_path, valid_share=0.0)
    message = r"^1 images have 16 bits and no pixel of 16384 or more(.|\n)*narrow.png$"
    with pytest.warns(UserWarning, match=message):
        packed = pack_images(table, 12, 1, progress=False)
    assert [len(np.unique(packed.read([row]))) for row in range(2)] == [144, 65]  # full.png, narrow.png
