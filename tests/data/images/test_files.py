import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import cpc.data.images.files
from cpc.data import ImageFiles, ImageTable, pack_images, read_image_source


@pytest.fixture
def table(tmp_path: Path) -> ImageTable:
    rng = np.random.default_rng(0)
    for number in range(12):
        image = Image.fromarray(rng.integers(0, 256, (20 + 20 * number, 90, 3), np.uint8))
        path = tmp_path / ("train" if number < 9 else "test") / f"class {number % 2}" / f"{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path)
    return read_image_source(tmp_path, valid_share=0.0)


@pytest.mark.parametrize("num_channels", [1, 3])
def test_decoded_on_the_fly_equals_packed(table: ImageTable, num_channels: int) -> None:
    files = ImageFiles(table, 16, num_channels)
    packed = pack_images(table, 16, num_channels, progress=False)
    for rows in ([3, 0, 11], np.array([5]), [], table.rows("test")):
        read = files.read(rows)
        assert (read.dtype, read.shape) == (np.uint8, (len(rows), 16, 16, num_channels))
        np.testing.assert_array_equal(read, packed.read(rows))
    assert files.skipped == packed.skipped == {}
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(files)).read([2, 11]), packed.read([2, 11]))


def test_statistics_are_exact_or_of_a_fixed_draw(table: ImageTable, monkeypatch: pytest.MonkeyPatch) -> None:
    files = ImageFiles(table, 16, 3)
    pixels = files.read(range(12)) / np.float64(255)
    exact = files.statistics(range(12))
    np.testing.assert_allclose(exact.mean, pixels.mean(axis=(0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(exact.std, pixels.std(axis=(0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(files.statistics([3, 1]).mean, pixels[[1, 3]].mean(axis=(0, 1, 2)), rtol=1e-12)
    monkeypatch.setattr(cpc.data.images.files, "NUM_STATISTICS_IMAGES", 4)
    estimated, again = files.statistics(range(12)), ImageFiles(table, 16, 3).statistics(range(12))
    assert estimated.mean.tolist() == again.mean.tolist() != exact.mean.tolist()
    # Four images of 256 independent pixels.
    np.testing.assert_allclose(estimated.mean, exact.mean, atol=0.05)
    with pytest.raises(ValueError, match="there are no images to compute statistics"):
        files.statistics([])
