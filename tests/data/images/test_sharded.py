"""Images in shards against the images themselves."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from refusals import refuses

from cpc import cli
from cpc.data import Images, read_image_source
from cpc.data.images.corpus import ImageCorpus
from cpc.data.images.pack import TABLE_NAME
from cpc.data.sharding import shard_corpus
from cpc.data.store.shards import INDEX_NAME, Shards

from .test_corpus import PATCHES

NUM_IMAGES, SIDE = 40, 14


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("images") / "a.npz"
    images = np.random.default_rng(0).integers(0, 256, (NUM_IMAGES, SIDE, SIDE, 3), np.uint8)
    split = ["train"] * 30 + ["test"] * 10
    np.savez(path, images=images, labels=np.arange(NUM_IMAGES) % 3, split=split, classes=["a", "b", "\u00fc"])
    return path


@pytest.fixture(scope="module")
def sharded(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sharded") / "out"
    cli.main(["data", "shard", str(source), "--out", str(out), "--shard_mb", "0.004", "--image_size", str(SIDE)])
    return out


def open_source(source: str | Path, **options: object) -> ImageCorpus:
    options = {"image_size": 12, "load_size": SIDE, "flip": True, "augmentation": "none"} | options
    return Images(source=str(source), **options).open(PATCHES)


def batches(source: str | Path, **options: object) -> list[bytes]:
    """Batches of training, as bytes; the held-out split is drawn."""
    corpus = open_source(source, valid_share=0.2, **options)
    windows = pickle.loads(pickle.dumps(corpus.windows("train", is_training=True)))
    stream = corpus.batches(windows, "uniform", 4, 0)
    found = [windows.__getitems__(stream.batch(index)) for index in range(20)]
    return [b"".join(part.numpy().tobytes() for part in batch[:5]) for batch in found]


def test_batches_and_statistics_are_those_of_the_images(source: Path, sharded: Path, tmp_path: Path) -> None:
    import fsspec

    assert len(list(sharded.glob("rows-*.bin"))) == -(-NUM_IMAGES // 6)  # six squares of 588 bytes in a shard
    assert batches(sharded) == batches(source)
    fsspec.filesystem("memory").put(str(sharded), "/images", recursive=True)
    assert batches("memory://images", cache_dir=str(tmp_path / "cache"), cache_gb=1.2e-5) == batches(source)
    assert sum(path.stat().st_size for path in (tmp_path / "cache").rglob("rows-*")) <= 1.2e4
    whole, cut = (open_source(place, valid_share=0.2) for place in (source, sharded))
    for split in ("train", "valid", "test"):
        assert [part.tolist() for part in whole.statistics(split)] == [part.tolist() for part in cut.statistics(split)]
    for name in ("names", "splits", "classes"):
        assert getattr(whole.table, name) == getattr(cut.table, name)
    for name in ("labels", "sequences"):
        np.testing.assert_array_equal(getattr(whole.table, name), getattr(cut.table, name))


def test_squares_of_another_shape_are_refused(sharded: Path) -> None:
    with pytest.raises(ValueError, match=r"squares of 14 pixels in 3 channels, but `load_size` 12 in 3 channels is"):
        open_source(sharded, load_size=None).images  # noqa: B018
    refuses("`packed`=false is for image files", open_source, sharded, packed=False)
    refuses("is sharded already", shard_corpus, sharded, sharded.parent / "twice", image_size=14)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "give `image_size` for images, or write one of audio with"),
        ({"image_size": 8, "sample_rate_hz": 8000.0}, "`sample_rate_hz`=8000.0 does not apply to images"),
        ({"image_size": 8, "shard_mb": 1e-5}, "the bytes of a shard=10 must be at least 192"),
        ({"image_size": 8, "num_channels": 0}, "num_channels"),
        ({"image_size": 8, "shard_mb": float("nan")}, "`shard_mb`=nan must be a finite number"),
    ],
)
def test_options_of_another_kind(source: Path, tmp_path: Path, options: dict[str, float], words: str) -> None:
    refuses(words, shard_corpus, source, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_audio_in_shards_is_no_source_of_images(sharded: Path, tmp_path: Path) -> None:
    index = json.loads((sharded / INDEX_NAME).read_text())
    index["files"]["manifest.csv"] = index["files"].pop(TABLE_NAME)
    for name in ("index.json", "rows.npy"):
        (tmp_path / name).write_bytes((sharded / name).read_bytes())
    (tmp_path / "manifest.csv").write_bytes((sharded / TABLE_NAME).read_bytes())
    (tmp_path / INDEX_NAME).write_text(json.dumps(index))
    assert Shards(tmp_path).num_bytes == NUM_IMAGES * SIDE * SIDE * 3
    refuses("holds no images: `cpc data shard` made it from other data", read_image_source, tmp_path)
