"""datasets/*/prepare.py of images, run by path, on small copies of each corpus's layout."""

import gzip
import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from shared_data import Prepare, real

from cpc.data.images.sources import read_image_source
from cpc.data.synthetic import photographs

RNG = np.random.default_rng(0)


def write_jpegs(path: Path, num_images: int, side: int = 32) -> list[np.ndarray]:
    """Packs noise; returns what a decoder makes of it."""
    files = []
    for _ in range(num_images):
        stream = io.BytesIO()
        Image.fromarray(RNG.integers(0, 256, (side, side, 3), np.uint8)).save(stream, "JPEG")
        files.append(stream.getvalue())
    offsets = np.cumsum([0, *map(len, files)])
    blob = np.frombuffer(b"".join(files), np.uint8)
    labels = np.arange(num_images, dtype=np.uint8) % 2
    np.savez(path, blob=blob, offsets=offsets, labels=labels, filenames=["x"] * num_images, classes=["cat", "dog"])
    return [np.asarray(Image.open(io.BytesIO(content))) for content in files]


def test_cifar10_jpeg(prepare: Prepare, tmp_path: Path) -> None:
    images = write_jpegs(tmp_path / "train_jpeg_packed.npz", 5) + write_jpegs(tmp_path / "test_jpeg_packed.npz", 2)
    out = tmp_path / "out" / "arrays"
    printed = prepare("cifar10_jpeg", tmp_path, "--out", out)
    assert re.search(r"train +5 +5 +\(published: 50000\)\n", printed)
    assert "2 classes: cat, dog" in printed
    assert sorted(path.name for path in out.iterdir()) == ["test.npz", "train.npz"]
    table = read_image_source(out, valid_share=0.0)
    assert table.splits == ["train"] * 5 + ["test"] * 2
    assert table.labels.tolist() == [0, 1, 0, 1, 0, 0, 1]
    for row, expected in enumerate(images):
        with table.open(row) as image:
            np.testing.assert_array_equal(np.asarray(image), expected)


def test_cifar10_jpeg_refusals(prepare: Prepare, tmp_path: Path) -> None:
    for name in ("train", "test"):
        write_jpegs(tmp_path / f"{name}_jpeg_packed.npz", 3)
    path = tmp_path / "test_jpeg_packed.npz"
    with np.load(path) as arrays:
        content = dict(arrays)
    content["blob"] = content["blob"].copy()
    content["blob"][content["offsets"][1] :][:20] = 0
    np.savez(path, **content)
    prepare("cifar10_jpeg", tmp_path, refused=r"test_jpeg_packed\.npz: image 1 cannot be decoded")
    assert not (tmp_path / "train.npz").exists(), "a refused corpus leaves nothing"
    write_jpegs(path, 2, side=33)
    prepare("cifar10_jpeg", tmp_path, refused=r"image 0 is \(33, 33, 3\), but must be \(32, 32, 3\)")
    path.unlink()
    prepare("cifar10_jpeg", tmp_path, refused=r"there is no .*test_jpeg_packed\.npz: see the card of the corpus")


def idx(values: np.ndarray) -> bytes:
    return bytes((0, 0, 8, values.ndim)) + np.array(values.shape, ">u4").tobytes() + values.tobytes()


@pytest.fixture
def mnist(tmp_path: Path) -> tuple[Path, np.ndarray]:
    images = RNG.integers(0, 256, (7, 28, 28), np.uint8)
    for prefix, part in (("train", slice(0, 4)), ("t10k", slice(4, 7))):
        for name, values in (("images-idx3", images), ("labels-idx1", np.arange(7, dtype=np.uint8))):
            (tmp_path / f"{prefix}-{name}-ubyte.gz").write_bytes(gzip.compress(idx(values[part])))
    return tmp_path, images


@pytest.mark.parametrize("is_unpacked", [False, True])
def test_mnist(prepare: Prepare, mnist: tuple[Path, np.ndarray], is_unpacked: bool) -> None:
    root, images = mnist
    for path in list(root.iterdir()) if is_unpacked else []:
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    prepare("mnist", root)
    table = read_image_source(root, valid_share=0.0)
    assert table.splits == ["train"] * 4 + ["test"] * 3
    assert table.labels.tolist() == list(range(7))
    for row in range(7):
        with table.open(row) as image:
            np.testing.assert_array_equal(np.asarray(image), images[row])


def test_mnist_refusals(prepare: Prepare, mnist: tuple[Path, np.ndarray]) -> None:
    root, images = mnist
    path = root / "t10k-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    float_header = idx(images[4:]).replace(b"\x08", b"\x0d", 1)
    for content, complaint in (
        (whole[: len(whole) // 2], r"t10k-images-idx3-ubyte\.gz: cannot be unpacked"),
        (gzip.compress(idx(images[4:])[:-1]), r"ubyte: is not an idx file of bytes with 3 axes, or a trunc"),
        (gzip.compress(float_header), "is not an idx file of bytes"),
        (gzip.compress(idx(images[:2])), "t10k has 2 images and 3 labels"),
    ):
        path.write_bytes(content)
        prepare("mnist", root, refused=complaint)
    assert not (root / "train.npz").exists()


def test_caltech101_small(prepare: Prepare, tmp_path: Path) -> None:
    for name in ("train/a/1", "train/b/1", "test/a/2", "test/b/2"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(tmp_path / f"{name}.jpg")
    printed = prepare("caltech101_small", tmp_path)
    assert re.search(r"test +2 +2 +\(published: 540\)\n2 classes: a, b", printed)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["test", "train"]
    (tmp_path / "test/b/2.jpg").unlink()
    prepare("caltech101_small", tmp_path, refused="classes b have images in only one of train and test")
    (tmp_path / "test").rename(tmp_path / "valid")
    prepare("caltech101_small", tmp_path, refused="is of split 'test'; the splits are train, valid")


def test_real_mnist(prepare: Prepare, tmp_path: Path) -> None:
    assert "published:" not in prepare("mnist", real("mnist"), "--out", tmp_path)
    table = read_image_source(tmp_path)
    # Published: the first training image is a 5, the first of the test part a 7.
    assert table.labels[[0, 60000]].tolist() == [5, 7]
    assert table.splits.count("valid") == 2980, "a source that stays keeps its split"


def test_real_caltech101_small(prepare: Prepare) -> None:
    printed = prepare("caltech101_small", real("caltech101_small"))
    assert "published:" not in printed
    assert "20 classes: Faces, Leopards, airplanes" in printed


def test_imagenet(prepare: Prepare, tmp_path: Path) -> None:
    for path in ("train/n01/a.JPEG", "train/n02/b.JPEG", "val/n01/c.JPEG"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(tmp_path / path)
    printed = prepare("imagenet", tmp_path)
    assert re.search(r"train +2 +2 +\(published: 1281167\)\n", printed)
    assert re.search(r"test +1 +1 +\(published: 50000\)\n", printed)


@pytest.mark.parametrize(
    ("corpus", "dataset"), [("stl10", "STL10"), ("cifar100", "CIFAR100"), ("imagenet", "ImageNet")]
)
def test_absent_corpora(corpus: str, dataset: str, prepare: Prepare, tmp_path: Path) -> None:
    prepare(corpus, tmp_path, refused=rf"error: .*{dataset}")


def test_embedded_images(prepare: Prepare, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("skimage", reason="the extra 'image' is not installed")
    monkeypatch.setattr(photographs, "PHOTOGRAPHS", ("coins.png", "page.png"))
    printed = prepare("embedded_images", tmp_path / "out")
    assert re.search(r"2 classes: coins, page", printed)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"photographs.npz", "digits.npz", "images.json"}
