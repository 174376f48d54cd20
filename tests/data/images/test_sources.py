import pickle
import re
import zipfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torchvision
from PIL import Image
from refusals import refuses

from cpc.data import ImageTable, read_image_source
from cpc.data.images.files import read_square


def write_images(root: Path, *names: str) -> Path:
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (number, 0, 0)).save(root / name)
    return root


def listed(table: ImageTable) -> list[tuple[str, str, str | None]]:
    """(name, split, class) of every image."""
    classes = [table.classes[label] if label >= 0 else None for label in table.labels.tolist()]
    return list(zip(table.names, table.splits, classes, strict=True))


def pixels(table: ImageTable, row: int) -> np.ndarray:
    with table.open(row) as image:
        return np.asarray(image)


# Folders of images.


def test_splits_of_classes(tmp_path: Path) -> None:
    write_images(tmp_path, "train/dog/b.png", "train/dog/a.png", "train/cat/deep/er/c.JPG", "val/cat/d.gif")
    write_images(tmp_path, "test/cow/e.bmp", "unlabeled/f.tif", "unlabeled/2/g.webp")
    (tmp_path / "readme.txt").write_text("words")
    table = read_image_source(tmp_path)
    assert listed(table) == [
        ("test/cow/e.bmp", "test", "cow"),
        ("train/cat/deep/er/c.JPG", "train", "cat"),
        ("train/dog/a.png", "train", "dog"),
        ("train/dog/b.png", "train", "dog"),
        ("unlabeled/2/g.webp", "unlabelled", None),
        ("unlabeled/f.tif", "unlabelled", None),
        ("val/cat/d.gif", "valid", "cat"),
    ]
    assert table.classes == ["cat", "cow", "dog"]
    assert table.labels.dtype == np.int64
    assert pixels(table, 2)[0, 0].tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("fit/0.png fit/1.png holdout/0.png", "train:fit train:fit train:holdout"),  # unknown words are classes
        ("a/deep/1.png b/1.png train/1.png", "train:a train:b train:train"),  # a class of trains
        ("a/1.png", "train:a"),
        (".cache/a.jpg .hidden.jpg 1.jpg 2.jpg", "unlabelled:None unlabelled:None"),
        ("test/x/b.png train/a.png valid/c.png", "test:x train:None valid:None"),  # splits without classes
    ],
)
def test_layouts_of_folders(tmp_path: Path, names: str, expected: str) -> None:
    table = read_image_source(write_images(tmp_path, *names.split()), valid_share=0.0)
    assert [f"{split}:{label}" for _, split, label in listed(table)] == expected.split()


@pytest.mark.parametrize(
    ("names", "complaint"),
    [
        (["a/1.png", "2.png"], r"1 images in .* lie beside the folders a:\n  2\.png"),
        (["train/a/1.png", "test/a/2.png", "extra/3.png"], r"1 other .* beside the splits test, train:\n  extra"),
        (["cat/1.png", "unlabelled/3.png"], r"1 other folders of .* lie beside the splits unlabelled:\n  cat"),
        (["train/a/1.png", "train/2.png"], r"beside the folders of their split's classes:\n  train/2\.png"),
    ],
)
def test_folders_that_could_mean_two_things_are_refused(tmp_path: Path, names: list[str], complaint: str) -> None:
    refuses(complaint, read_image_source, write_images(tmp_path, *names))


def test_a_source_without_images_says_what_there_is(tmp_path: Path) -> None:
    refuses(rf"no image below {tmp_path} \(found: nothing\)", read_image_source, tmp_path)
    for name in ("a.wav", "b.wav", "LICENCE", "my.npz"):
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match=r"found: 2 \.wav, 1 (\.npz|LICENCE), .*suffix: .*\.jpg.*train\.npz") as caught:
        read_image_source(tmp_path)
    assert "1 LICENCE" in str(caught.value)


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("nowhere", "there is no folder or npz file nowhere; data sets of torchvision are named NAME:ROOT"),
        ("svhn:data", "torchvision='svhn' is not one of cifar10"),
        (Path(__file__), "is not an npz file"),
    ],
)
def test_a_source_that_is_none_is_named(source: str | Path, complaint: str) -> None:
    refuses(complaint, read_image_source, source)


# Arrays.

RNG = np.random.default_rng(0)
RGB = RNG.integers(0, 256, (6, 5, 7, 3), np.uint8)


def save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def test_one_file_with_everything(tmp_path: Path) -> None:
    path = save(
        tmp_path / "digits.npz",
        images=RGB,
        labels=np.array([0, 1, -1, 1, 0, -1], np.int8),
        split=["train", "train", "train", "val", "test", "unlabeled"],
        classes=["zero", "one"],
    )
    table = read_image_source(path)
    assert listed(table) == [
        ("digits:0", "train", "zero"),
        ("digits:1", "train", "one"),
        ("digits:2", "train", None),
        ("digits:3", "valid", "one"),
        ("digits:4", "test", "zero"),
        ("digits:5", "unlabelled", None),
    ]
    assert table.labels.dtype == np.int64
    for row in (0, 5):
        np.testing.assert_array_equal(pixels(table, row), RGB[row])


def test_a_file_without_labels_is_unlabelled_and_one_with_some_is_for_training(tmp_path: Path) -> None:
    table = read_image_source(save(tmp_path / "a.npz", images=RGB), valid_share=0.0)
    assert (set(table.splits), table.classes, set(table.labels.tolist())) == ({"unlabelled"}, [], {-1})
    table = read_image_source(save(tmp_path / "a.npz", images=RGB, labels=[-1, 2, -1, -1, 0, 0]), valid_share=0.0)
    assert (set(table.splits), table.classes) == ({"train"}, ["0", "1", "2"])


@pytest.mark.parametrize("shape", [(3, 5, 4), (3, 5, 4, 1), (3, 5, 4, 3), (3, 5, 4, 4)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_grey_and_colour_arrays(tmp_path: Path, shape: tuple[int, ...], order: str) -> None:
    images = RNG.integers(0, 256, shape, np.uint8)
    if shape[3:] == (4,):
        images[..., 3] = 255
    table = read_image_source(save(tmp_path / "a.npz", images=np.asarray(images, order=order)), valid_share=0.0)
    square = read_square(table, 1, 4, 3)
    expected = images[1, :4].reshape(4, 4, -1)[..., :3]
    np.testing.assert_array_equal(square, np.broadcast_to(expected, (4, 4, 3)))


def test_a_folder_of_files_by_split(tmp_path: Path) -> None:
    save(tmp_path / "train.npz", images=RGB, labels=[0, 1, 2, 0, 1, 2], classes=["a", "b", "c"])
    save(tmp_path / "val.npz", images=RGB[:2, ..., 0], labels=np.array([2, 0], np.uint64))
    save(tmp_path / "test.npz", images=RGB[:1], labels=[1], classes=["a", "b", "c"])
    save(tmp_path / "unlabelled.npz", images=np.zeros((3, 9, 9), np.uint8))
    write_images(tmp_path, "preview.png")
    table = read_image_source(tmp_path)
    assert Counter(table.splits) == {"train": 6, "valid": 2, "test": 1, "unlabelled": 3}
    labels = [table.labels[table.rows(split)].tolist() for split in ("valid", "test", "unlabelled")]
    assert labels == [[2, 0], [1], [-1, -1, -1]]
    (row,) = table.rows("test").tolist()
    assert table.names[row] == "test:0"
    np.testing.assert_array_equal(pixels(table, row), RGB[0])
    np.testing.assert_array_equal(pixels(table, table.names.index("valid:1")), RGB[1, ..., 0])


BAD_ARRAYS: dict[str, tuple[dict[str, Any], str]] = {
    "none": ({"x_train": RGB}, "has no array 'images', only x_train"),
    "float": ({"images": RGB / 255}, r"images are float64 \[6, 5, 7, 3\], but must be uint8"),
    "channels_first": ({"images": RGB.transpose(0, 3, 1, 2)}, r"images are uint8 \[6, 3, 5, 7\], but"),
    "no_image": ({"images": RGB[:0]}, r"images are uint8 \[0, 5, 7, 3\], but .* n at least 1"),
    "few_labels": ({"images": RGB, "labels": [0, 1]}, r"labels is int64 \[2\], but must be whole numbers \[6\]"),
    "low_label": ({"images": RGB, "labels": [0, -2, 0, 0, 0, 0]}, "labels go from -2 to 0, but must lie in -1"),
    "wrapped_label": ({"images": RGB, "labels": np.array([2**64 - 1] + [0] * 5, np.uint64)}, "labels go from 0 to 184"),
    "no_class": ({"images": RGB, "classes": [1, 2]}, r"classes is int64 \[2\], but must be strings"),
    "same_class": ({"images": RGB, "classes": ["a", "a"]}, "a class occurs twice"),
    "strange_split": ({"images": RGB, "split": ["kept"] * 6}, "1 splits of .* are none of train, .*:\n  'kept'"),
    "pickled": ({"images": RGB, "labels": np.array([None] * 6)}, "cannot be read as an npz file .*allow_pickle"),
}


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_arrays_of_another_kind_are_refused(tmp_path: Path, case: str) -> None:
    arrays, complaint = BAD_ARRAYS[case]
    path = save(tmp_path / "a.npz", **arrays)
    refuses(f"^({path}|a.npz): ({tmp_path}: )?{complaint}", read_image_source, path)


def test_files_that_disagree_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "train.npz", images=RGB, labels=[0] * 6, classes=["a", "b"])
    save(tmp_path / "test.npz", images=RGB, labels=[2] * 6)
    refuses(r"6 of 12 labels .* neither the index of one of 2 classes(?s:.*)test:0: 2", read_image_source, tmp_path)
    save(tmp_path / "test.npz", images=RGB, classes=["b", "a"])
    refuses(r"the classes of train and test differ: \['a', 'b'\] and", read_image_source, tmp_path)
    (tmp_path / "test.npz").unlink()
    for name in ("valid", "val"):
        save(tmp_path / f"{name}.npz", images=RGB)
    refuses("two of these files are of one split", read_image_source, tmp_path)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_text("words")
    refuses(rf"^{path}: cannot be read as an npz file \(File is not a zip file\)", read_image_source, path)
    save(path, images=np.tile(RGB, (20, 1, 1, 1)))
    content = bytearray(path.read_bytes())
    content[9000] ^= 255  # a pixel: the checksum is wrong
    path.write_bytes(content)
    table = read_image_source(path, valid_share=0.0)
    refuses(rf"^{path}: cannot be read as an npz file \(Bad CRC-32", pixels, table, 0)


def test_npz_files_that_were_joined_are_refused(tmp_path: Path) -> None:
    """`zipfile` reads the last of them."""
    first, second = (save(tmp_path / f"{name}.npz", images=RGB[:n]) for name, n in (("a", 6), ("b", 2)))
    path = tmp_path / "c.npz"
    path.write_bytes(first.read_bytes() + second.read_bytes())
    refuses(rf"^{path}: .*{first.stat().st_size} bytes lie before its arrays", read_image_source, path)


def test_sequences_are_of_one_file_and_held_out_together(tmp_path: Path) -> None:
    sequence = [7, 7, -1, 7, 0, -1]
    for name in ("train", "test"):
        save(tmp_path / f"{name}.npz", images=RGB, labels=[0] * 6, sequence=sequence)
    table = read_image_source(tmp_path, valid_share=0.0)
    assert table.sequences.tolist() == [0, 0, 2, 0, 4, 2, 6, 6, 8, 6, 10, 8]
    seen = set()
    for seed in range(20):
        drawn = read_image_source(tmp_path, valid_share=0.4, seed=seed)
        assert drawn.sequences.tolist() == table.sequences.tolist()
        held_out = frozenset(drawn.rows("valid").tolist())
        assert held_out in ({0, 1, 3}, {2, 5}, {4}, {0, 1, 3, 2, 5}, {0, 1, 3, 4}, {2, 5, 4})
        seen.add(held_out)
    assert len(seen) > 2


def test_unknown_arrays_are_mentioned(tmp_path: Path) -> None:
    path = save(tmp_path / "train.npz", images=RGB, label=[1] * 6, split=["test"] * 6)
    with pytest.warns(UserWarning, match="label are ignored; only classes, images, labels, sequence, split"):
        assert set(read_image_source(path).splits) == {"test"}
    with pytest.warns(UserWarning, match="the arrays label, split are ignored; only classes, images, labels"):
        assert set(read_image_source(tmp_path, valid_share=0.0).splits) == {"train"}


def test_pixels_are_read_when_needed_and_do_not_travel(tmp_path: Path) -> None:
    path = save(tmp_path / "a.npz", images=np.tile(RGB, (50, 10, 10, 1)))  # 3 MB
    table = read_image_source(path, valid_share=0.0)
    pixels(table, 0)
    data = pickle.dumps(table)
    assert len(data) < 20_000
    np.testing.assert_array_equal(pixels(pickle.loads(data), 299), pixels(table, 299))


# torchvision's data sets.


@pytest.fixture
def stl10(tmp_path: Path) -> Path:
    folder = tmp_path / "stl10_binary"
    folder.mkdir()
    for name, num_images in (("train", 20), ("test", 3), ("unlabeled", 5)):
        RNG.integers(0, 256, (num_images, 3, 96, 96), np.uint8).tofile(folder / f"{name}_X.bin")
        if name != "unlabeled":
            (np.arange(num_images, dtype=np.uint8) % 10 + 1).tofile(folder / f"{name}_y.bin")
    names = "airplane bird car cat deer dog horse monkey ship truck"
    (folder / "class_names.txt").write_text("\n".join(names.split()) + "\n")
    return tmp_path


def test_stl10_as_torchvision_reads_it(stl10: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchvision.datasets.STL10, "_check_integrity", lambda _: True)
    table = read_image_source(f"stl10:{stl10}", valid_share=0.0)
    assert table.rows("train").tolist() == list(range(20))
    for split, theirs in (("train", "train"), ("test", "test"), ("unlabelled", "unlabeled")):
        expected = torchvision.datasets.STL10(stl10, theirs)
        rows = table.rows(split)
        assert len(rows) == len(expected)
        for row, (image, label) in zip(rows.tolist(), expected, strict=True):
            np.testing.assert_array_equal(pixels(table, row), np.asarray(image))
            assert table.labels[row] == label
    assert table.classes == expected.classes
    assert set(table.labels[table.rows("unlabelled")].tolist()) == {-1}
    assert Counter(read_image_source(f"stl10:{stl10}", valid_share=0.2).splits)["unlabelled"] == 5


def test_stl10_that_is_not_whole(stl10: Path) -> None:
    folder = stl10 / "stl10_binary"
    labels = (folder / "test_y.bin").read_bytes()
    for wrong in (labels[:-1], labels[:-1] + b"\0", labels[:-1] + b"\x0b"):
        (folder / "test_y.bin").write_bytes(wrong)
        refuses(r"test_X\.bin or its labels are truncated or damaged", read_image_source, f"stl10:{stl10}")
    (folder / "test_y.bin").write_bytes(labels)
    images = folder / "unlabeled_X.bin"
    images.write_bytes(images.read_bytes()[:-1])
    refuses(r"unlabeled_X\.bin or its labels are truncated", read_image_source, f"stl10:{stl10}")
    images.unlink()
    get = re.escape(f"torchvision.datasets.STL10('{stl10}', download=True)")
    refuses(rf"stl10_binary holds no unlabeled_X\.bin; get .* python -c .*{get}", read_image_source, f"stl10:{stl10}")


def write_cifar(root: Path, dataset: type[torchvision.datasets.CIFAR10], label_key: str) -> None:
    folder = root / dataset.base_folder
    folder.mkdir()
    for name, _ in dataset.train_list + dataset.test_list:
        data = RNG.integers(0, 256, (4, 3072), np.uint8)
        (folder / name).write_bytes(pickle.dumps({"data": data, label_key: RNG.integers(0, 10, 4).tolist()}))
    classes = [f"class {number}" for number in range(10)]
    (folder / dataset.meta["filename"]).write_bytes(pickle.dumps({dataset.meta["key"]: classes}))


def write_mnist(root: Path) -> None:
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for prefix, num in (("train", 4), ("t10k", 3)):
        for name, values in (
            ("images-idx3", RNG.integers(0, 256, (num, 28, 28), np.uint8)),
            ("labels-idx1", np.arange(num, dtype=np.uint8)),
        ):
            header = bytes((0, 0, 8, values.ndim)) + np.array(values.shape, ">u4").tobytes()
            (raw / f"{prefix}-{name}-ubyte").write_bytes(header + values.tobytes())


@pytest.mark.parametrize(("name", "key"), [("cifar10", "labels"), ("cifar100", "fine_labels"), ("mnist", "")])
def test_data_sets_of_torchvision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, key: str) -> None:
    dataset = getattr(torchvision.datasets, name.upper())
    if key:
        write_cifar(tmp_path, dataset, key)
    with pytest.raises(ValueError, match=rf"no complete {name.upper()}.*datasets\.{name.upper()}\("):
        read_image_source(f"{name}:{tmp_path}")  # the checksums of CIFAR are others, MNIST is not there
    monkeypatch.setattr(torchvision.datasets.cifar, "check_integrity", lambda *_: True)
    if not key:
        write_mnist(tmp_path)
    table = read_image_source(f"{name}:{tmp_path}", valid_share=0.0)
    assert len(table.classes) == 10
    for split in ("train", "test"):
        expected = dataset(tmp_path, train=split == "train")
        assert len(expected) == len(table.rows(split))
        for row, (image, label) in zip(table.rows(split).tolist(), expected, strict=True):
            np.testing.assert_array_equal(pixels(pickle.loads(pickle.dumps(table)), row), np.asarray(image))
            assert table.labels[row] == label


def test_imagenet_reports_on_its_validation_part(tmp_path: Path) -> None:
    refuses(r"no folder train, no val of ImageNet; torchvision.*unpacks", read_image_source, f"imagenet:{tmp_path}")
    names = [f"train/n0144{number % 2}/{number}.JPEG" for number in range(40)]
    write_images(tmp_path, *names, "val/n01440/v.JPEG", "test/not_labelled.JPEG")
    table = read_image_source(f"imagenet:{tmp_path}", valid_share=0.1)
    assert table.classes == ["n01440", "n01441"]
    assert [table.names[row] for row in table.rows("test")] == ["val/n01440/v.JPEG"]
    assert 0 < Counter(table.splits)["valid"] < 12
    (tmp_path / "val/n01440").rename(tmp_path / "val2")
    write_images(tmp_path, "val/v.JPEG")
    refuses(r"val/v\.JPEG is not in the folder of a class", read_image_source, f"imagenet:{tmp_path}")


# The split `valid`.


def test_valid_is_drawn_from_the_split_that_is_trained_on(tmp_path: Path) -> None:
    labels = np.where(np.arange(60) < 30, 0, -1)
    images, split = np.tile(RGB, (10, 1, 1, 1)), ["train", "unlabelled"] * 30
    path = save(tmp_path / "a.npz", images=images, labels=labels, split=split)
    for valid_from, source_of in (("train", 0), ("unlabelled", 1), (None, 0)):
        table = read_image_source(path, valid_share=0.3, valid_from=valid_from)
        held_out = table.rows("valid")
        assert set((held_out % 2).tolist()) == {source_of}
        assert len(table.rows("unlabelled" if source_of == 0 else "train")) == 30  # nothing is taken from the other
    alone = read_image_source(path, valid_share=0.3, valid_from="test")  # not there: whoever asks for it will be told
    assert "valid" not in alone.splits


def test_a_source_of_test_images_or_of_one_image_cannot_be_divided(tmp_path: Path) -> None:
    write_images(tmp_path / "tests", "test/a/1.png", "test/a/2.png")
    assert read_image_source(tmp_path / "tests").splits == ["test", "test"]
    write_images(tmp_path / "one", "a/1.png")
    refuses(r"a/1\.png: these 1 are too few, .* train, valid need", read_image_source, tmp_path / "one")


# The table.


def test_tables_that_are_wrong_are_refused(tmp_path: Path) -> None:
    table = read_image_source(write_images(tmp_path, "train/a/1.png", "train/b/2.png", "valid/a/3.png"))
    refuses(r"1 names in .* occur more than once in the table:\n  x", replace, table, names=["x", "y", "x"])
    refuses("columns of a table must have the same length", replace, table, splits=["train"])


def test_fewer_images_than_promised_take_no_memory(tmp_path: Path) -> None:
    header = {"descr": "|u1", "fortran_order": False, "shape": (10**12, 8, 8)}
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive, archive.open("images.npy", "w") as stream:
        np.lib.format.write_array_header_1_0(stream, header)
        stream.write(bytes(64))
    refuses(r"a\.npz: cannot .*\(fewer images than its shape \[10{12}, 8", read_image_source, tmp_path / "a.npz")


def test_one_image_under_two_names_is_refused(tmp_path: Path) -> None:
    write_images(tmp_path / "files", "train/cat/1.png", "train/dog/2.png", "valid/dog/3.png")
    (tmp_path / "files/valid/cat").symlink_to("../train/cat")  # a folder is followed once: no double
    read_image_source(tmp_path / "files")
    (tmp_path / "files/valid/dog/1.png").symlink_to("../../train/cat/1.png")
    refuses(r"two names(?s:.*)train/cat/1\.png and valid/dog/1\.png", read_image_source, tmp_path / "files")
    (tmp_path / "arrays").mkdir()
    save(tmp_path / "arrays/train.npz", images=RGB)
    (tmp_path / "arrays/valid.npz").symlink_to("train.npz")
    refuses(r"two names(?s:.*)train\.npz and valid\.npz", read_image_source, tmp_path / "arrays")


def test_an_image_that_is_only_large_is_not_called_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 30)
    Image.new("L", (9, 9)).save(tmp_path / "a.png")
    refuses(r"a\.png: has more pixels than the maximum, 60", pixels, read_image_source(tmp_path, valid_share=0.0), 0)
    Image.new("L", (5, 5)).save(tmp_path / "a.png")
    pixels(read_image_source(tmp_path, valid_share=0.0), 0)


@pytest.mark.parametrize("name", ["split", "classes"])
def test_text_beyond_unicode_is_refused(tmp_path: Path, name: str) -> None:
    """numpy reads any 32-bit number as a character; Python's str does not hold it."""
    text = np.array(["train", "valid", "test"], dtype="<U8")
    text.view(np.uint32)[1] = 0x110000
    save(tmp_path / "a.npz", images=RGB[:3], labels=np.arange(3), **{name: text})
    refuses(rf"a\.npz.*{name} holds characters that are not in Unicode", read_image_source, tmp_path / "a.npz")
