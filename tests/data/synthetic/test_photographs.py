import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from refusals import refuses
from sklearn.datasets import load_digits

from cpc.data import ImageTable, read_image_source
from cpc.data.synthetic import photographs
from cpc.data.synthetic.photographs import CROP_SIZE, PHOTOGRAPHS, cut_crops, photograph_files, write_image_corpora

pytest.importorskip("skimage", reason="the extra 'image' is not installed")

FEW = ("coins.png", "page.png", "text.png")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpora as the quickstart makes them. Read them only."""
    out = tmp_path_factory.mktemp("images") / "corpus"
    write_image_corpora(out)
    return out


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(photographs, "PHOTOGRAPHS", FEW)


@pytest.fixture(scope="module")
def table(folder: Path) -> ImageTable:
    return read_image_source(folder / "photographs.npz")


def counts(table: ImageTable, split: str) -> dict[str, int]:
    return Counter(table.classes[label] for label in table.labels[table.rows(split)])


@pytest.mark.parametrize(("height", "width"), [(512, 512), (172, 448), (303, 384), (384, 600)])
def test_crops_are_windows_of_the_photograph_and_splits_share_no_pixel(height: int, width: int) -> None:
    numbered = np.arange(height * width).reshape(height, width)
    crops = cut_crops(numbered, np.random.default_rng(0))
    seen = {split: np.concatenate(blocks) for split, blocks in crops.items()}
    rows, columns = np.mgrid[:CROP_SIZE, :CROP_SIZE]
    for split_crops in seen.values():
        assert np.array_equal(
            split_crops - split_crops[:, :1, :1], np.broadcast_to(rows * width + columns, split_crops.shape)
        )
    assert set(seen) == {"train", "valid", "test"}
    for one, other in (("train", "valid"), ("train", "test"), ("valid", "test")):
        assert not set(np.unique(seen[one])) & set(np.unique(seen[other]))
    blocks = {split: len(split_crops) for split, split_crops in crops.items()}
    assert blocks["test"] == pytest.approx(0.3 * sum(blocks.values()), abs=0.5)
    assert blocks["train"] > blocks["test"] > 0
    assert min(len(block_crops) for split_crops in crops.values() for block_crops in split_crops) >= 9


def test_the_seed_deals_the_blocks() -> None:
    numbered = np.arange(512 * 512).reshape(512, 512)
    once, again, other = (cut_crops(numbered, np.random.default_rng(seed))["test"] for seed in (0, 0, 1))
    assert np.array_equal(np.concatenate(once), np.concatenate(again))
    assert {crops[0, 0, 0] for crops in once} != {crops[0, 0, 0] for crops in other}


@pytest.mark.parametrize("name", ["grass", "gravel"])
def test_written_crops_of_training_and_test_lie_apart(table: ImageTable, folder: Path, name: str) -> None:
    """Found again in the photograph, by their rows of 64 pixels, of which these two have no two alike."""
    whole = np.asarray(Image.open(photograph_files()[name]).convert("L"))
    windows = np.lib.stride_tricks.sliding_window_view(whole, CROP_SIZE, axis=1)
    place_of = {windows[y, x].tobytes(): (y, x) for y in range(windows.shape[0]) for x in range(windows.shape[1])}
    arrays = np.load(folder / "photographs.npz")
    images = arrays["images"]
    block_of_pixel = np.full(whole.shape, -1)
    sequences_of = {}
    for split in ("train", "valid", "test"):
        rows = [row for row in table.rows(split) if table.classes[table.labels[row]] == name]
        sequences_of[split] = set(arrays["sequence"][rows].tolist())
        for crop, block in zip(images[rows], arrays["sequence"][rows].tolist(), strict=True):
            y, x = place_of[crop[0].tobytes()]
            seen = block_of_pixel[y : y + CROP_SIZE, x : x + CROP_SIZE]
            assert set(seen.ravel().tolist()) <= {-1, block}  # crops of other sequences share no pixel with it
            seen[:] = block
            assert np.array_equal(whole[y : y + CROP_SIZE, x : x + CROP_SIZE], crop)
    sequences = set.union(*sequences_of.values())
    assert sequences == set(block_of_pixel.ravel().tolist()) - {-1}
    assert len(sequences) == sum(map(len, sequences_of.values())) == 25  # 512 pixels a side in blocks of about 96
    assert table.sequences[[0, 1]].tolist() == [0, 0]  # the table reads them


def test_every_photograph_is_a_class_of_every_split_and_the_test_is_balanced(table: ImageTable) -> None:
    assert len(table.classes) == len(set(table.classes)) == len(PHOTOGRAPHS) == 18
    assert {"astronaut", "motorcycle", "hubble"} < set(table.classes)
    for split in ("train", "valid", "test"):
        assert set(counts(table, split)) == set(table.classes)
    tested = set(counts(table, "test").values())
    assert len(tested) == 1  # so that always one answer is right in one of 18
    assert tested.pop() >= 30
    assert max(counts(table, "train").values()) == 400
    with table.open(0) as image:
        assert (image.size, image.mode) == ((64, 64), "L")


def test_digits_are_scikit_learns_in_its_order(folder: Path) -> None:
    table = read_image_source(folder / "digits.npz")
    small, labels = load_digits(return_X_y=True)
    assert table.classes == [str(digit) for digit in range(10)]
    assert np.array_equal(table.labels, labels)
    assert table.splits == ["train"] * 1078 + ["valid"] * 180 + ["test"] * 539
    images = np.load(folder / "digits.npz")["images"]
    assert images.shape == (1797, 32, 32)
    shrunk = images.reshape(-1, 8, 4, 8, 4).mean((2, 4)).reshape(-1, 64)
    assert np.corrcoef(shrunk.ravel(), small.ravel())[0, 1] > 0.98
    assert images[:, 14:18, 14:18].std() > 20


@pytest.mark.usefixtures("few")
def test_what_is_there_is_used_again_and_the_same_seed_gives_the_same(tmp_path: Path) -> None:
    files = write_image_corpora(tmp_path / "one")
    written = {path: path.stat().st_mtime_ns for path in files.values()}
    assert write_image_corpora(tmp_path / "one") == files
    assert {path: path.stat().st_mtime_ns for path in files.values()} == written
    (tmp_path / "two").mkdir()  # an empty folder is as good as none
    for name, path in write_image_corpora(tmp_path / "two").items():
        for array in ("images", "labels", "split", "classes") + (("sequence",) if name == "photographs" else ()):
            assert np.array_equal(np.load(path)[array], np.load(files[name])[array])


@pytest.mark.usefixtures("few")
def test_other_contents_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    refuses(r"holds other files, but not a finished corpus \(images.json is missing", write_image_corpora, tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    refuses("holds other files", write_image_corpora, tmp_path / "notes.txt")
    files = write_image_corpora(tmp_path / "corpus")
    refuses(r"seed is 0 in its record, 1 here.*name another one", write_image_corpora, tmp_path / "corpus", seed=1)
    files["digits"].unlink()
    refuses("is incomplete", write_image_corpora, tmp_path / "corpus")
    (tmp_path / "corpus" / "images.json").write_text("[]")
    refuses("is not the record of a made corpus", write_image_corpora, tmp_path / "corpus")


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(photographs, "PHOTOGRAPHS", (*FEW, "yeti.png"))
        refuses(r"has no yeti\.png", write_image_corpora, tmp_path / "corpus")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "skimage", None)
        refuses(r"--extra image.*contrastive-predictive-coding\[image\]", write_image_corpora, tmp_path / "corpus")
    broken = tmp_path / "skimage" / "data"
    broken.mkdir(parents=True)
    for name in FEW:
        (broken / name).write_bytes(b"no picture")
    monkeypatch.setattr(photographs, "photograph_files", lambda: {"coins": broken / "coins.png"})
    refuses(r"coins\.png: cannot be decoded.*install scikit-image again", write_image_corpora, tmp_path / "corpus")
    assert not (tmp_path / "corpus").exists()
