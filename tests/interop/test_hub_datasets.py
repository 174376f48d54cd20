"""Datasets of Hugging Face, in folders as its package writes them and from a Hub, against the files that went in."""

import csv
import io
import json
import tarfile
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
from hub_server import serve_hub
from PIL import Image
from refusals import refuses

from cpc import cli
from cpc.data import index_folder, read_image_source, read_manifest
from cpc.interop.hub_datasets import _known_split, download_dataset, read_cell

library: Any = pytest.importorskip("datasets")
assert library is import_module("datasets")


def make_table(rows: list[dict[str, Any]], **features: Any) -> Any:
    """A dataset with a column `audio`, whose own encoder would need a package."""
    plain = {"audio": {"bytes": library.Value("binary"), "path": library.Value("string")}}
    table = library.Dataset.from_list(rows, features=library.Features(plain | features))
    return table.cast(library.Features({"audio": library.Audio()} | features))


def flac(write_audio: Callable[..., Path], folder: Path, number: int) -> bytes:
    return write_audio(folder / f"{number}.flac", seconds=0.1, seed=number).read_bytes()


def png(picture: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(picture).save(stream, "png")
    return stream.getvalue()


@pytest.fixture
def speech(tmp_path: Path, write_audio: Callable[..., Path]) -> tuple[Path, list[bytes]]:
    """Parquet files by split, as datasets of the Hub have them."""
    files = [flac(write_audio, tmp_path / "made", number) for number in range(6)]
    text, emotion = library.Value("string"), library.ClassLabel(names=["calm", "glad"])
    features = {"speaker_id": library.Value("int64"), "text": text, "emotion": emotion, "words": library.List(text)}
    rows = [
        {"audio": {"bytes": content, "path": None if number % 2 else f"x/{number}.flac"}, "speaker_id": number % 3}
        | {"text": f"a, {number}", "emotion": number % 2, "words": ["a"]}
        for number, content in enumerate(files)
    ]
    (tmp_path / "source").mkdir()
    for split, chosen in {"train": rows[:4], "validation": rows[4:]}.items():
        make_table(chosen, **features).to_parquet(tmp_path / "source" / f"{split}-00000-of-00001.parquet")
    return tmp_path / "source", files


def test_audio_comes_with_its_labels_and_is_indexed(
    speech: tuple[Path, list[bytes]], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    source, files = speech
    out = tmp_path / "out"
    cli.main(["data", "download", str(source), "--out", str(out)])
    assert f"cpc data index {out} --labels {out / 'labels.csv'}" in capsys.readouterr().out
    index_folder(out, labels=out / "labels.csv", progress=False)
    manifest = read_manifest(out)
    assert [file.read_bytes() for file in manifest.files] == files
    assert manifest.column("split") == ["train"] * 4 + ["valid"] * 2
    assert manifest.column("speaker") == ["0", "1", "2", "0", "1", "2"]
    assert manifest.column("emotion") == ["calm", "glad"] * 3
    assert manifest.column("text")[5] == "a, 5"
    assert "words" not in manifest.columns
    download_dataset(str(source), out=tmp_path / "one", splits=["validation"])
    assert len(list((tmp_path / "one").rglob("*.flac"))) == 2


def test_images_lie_by_split_and_class(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 256, (8, 8, 3), np.uint8) for _ in range(8)]
    names = ["<", "../dog", ">"]
    features = library.Features({"image": library.Image(), "label": library.ClassLabel(names=names)})
    rows = [
        {"image": {"bytes": png(picture), "path": None}, "label": number % 3 if number else -1}
        for number, picture in enumerate(pictures)
    ]
    parts = {"train": rows[:6], "test": rows[6:]}
    data = {split: library.Dataset.from_list(part, features=features) for split, part in parts.items()}
    library.DatasetDict(data).save_to_disk(tmp_path / "source")
    download_dataset(str(tmp_path / "source"), out=tmp_path / "out")
    table = read_image_source(tmp_path / "out", valid_share=0.0)
    assert table.classes == ["%2E.%2Fdog", "%3C", "%3E"]
    assert Counter(table.splits) == {"train": 5, "test": 2, "unlabelled": 1}
    for row, name in enumerate(table.names):
        with table.open(row) as found:
            number = int(Path(name).stem.rpartition("-")[2]) + 6 * (table.splits[row] == "test")
            assert found.tobytes() == pictures[number].tobytes()
            assert number == 0 or table.classes[table.labels[row]] == ["%3C", "%2E.%2Fdog", "%3E"][number % 3]


def test_minus_one_is_a_number_but_no_class(tmp_path: Path, write_audio: Callable[..., Path]) -> None:
    feeling, mood = library.Value("int64"), library.ClassLabel(names=["calm", "glad"])
    files = [flac(write_audio, tmp_path, number) for number in range(3)]
    rows = [{"audio": {"bytes": file, "path": None}, "feeling": n, "mood": n} for n, file in enumerate(files, -1)]
    table = make_table(rows, feeling=feeling, mood=mood)
    library.DatasetDict({"train": table}).save_to_disk(tmp_path / "source")
    out = download_dataset(str(tmp_path / "source"), out=tmp_path / "out")
    with (out / "labels.csv").open(newline="") as stream:
        labels = [(row["feeling"], row["mood"]) for row in csv.DictReader(stream)]
    assert labels == [("-1", ""), ("0", "calm"), ("1", "glad")]
    picture = {"image": {"bytes": png(np.zeros((2, 2), np.uint8)), "path": None}}
    features = library.Features({"image": library.Image(), "feeling": feeling})
    pictures = library.Dataset.from_list([picture | {"feeling": value} for value in (-1, 0, 1)], features=features)
    library.DatasetDict({"train": pictures}).save_to_disk(tmp_path / "pictures")
    out = download_dataset(str(tmp_path / "pictures"), out=tmp_path / "classes", label="feeling")
    assert sorted(file.parent.name for file in out.rglob("*.png")) == ["-1", "0", "1"]
    assert [folder.name for folder in out.iterdir()] == ["train"]


def test_a_split_is_known_by_its_first_word() -> None:
    for split, names in {
        "train": "train train.clean.100 training_2",
        "valid": "validation Valid val2014 dev-other",
        "test": "testing test_matched",
        "unlabelled": "unlabeled unsupervised",
    }.items():
        assert {_known_split(name, "org/words") for name in names.split()} == {split}
    for name in ("validated", "devices", "trainval", "testimonials", ""):
        refuses(f"org/words: split '{name}' is not a form of train", _known_split, name, "org/words")


def test_empty_splits_are_skipped_and_configurations_named(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    features = library.Features({"image": library.Image(), "label": library.ClassLabel(names=["a"])})
    row = {"image": {"bytes": png(np.zeros((2, 2), np.uint8)), "path": None}, "label": 0}
    full = library.Dataset.from_list([row], features=features)
    empty = full.select([])
    library.DatasetDict({"train": full, "test": empty}).save_to_disk(tmp_path / "saved")
    for folder in ("tables", "named/small", "named/large"):
        (tmp_path / folder).mkdir(parents=True)
        full.to_parquet(tmp_path / folder / "train-00000-of-00001.parquet")
    empty.to_parquet(tmp_path / "tables" / "test-00000-of-00001.parquet")
    for source in ("saved", "tables"):
        out = download_dataset(str(tmp_path / source), out=tmp_path / f"{source} written")
        assert [path.relative_to(out).as_posix() for path in out.rglob("*.png")] == ["train/a/train-00000000.png"]
        assert capsys.readouterr().err.endswith(f"{source}: split 'test' is empty and is skipped\n")
    with pytest.raises(ValueError, match="has no rows in test: choose other `splits`"):
        download_dataset(str(tmp_path / "tables"), out=tmp_path / "out", splits=["test"])
    configs = "".join(f"- config_name: {name}\n  data_files: {name}/*\n" for name in ("small", "large"))
    (tmp_path / "named" / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    for config, words in ((None, "has several configurations"), ("huge", "has no configuration 'huge'")):
        with pytest.raises(ValueError, match=rf"{words}: choose one with `config`: \['small', 'large'\]$"):
            download_dataset(str(tmp_path / "named"), out=tmp_path / "out", config=config)
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_read_is_named_and_leaves_nothing(speech: tuple[Path, list[bytes]], tmp_path: Path) -> None:
    source, _ = speech
    out = tmp_path / "out"
    refuses(r"splits`='dev' is not one of train, validation", download_dataset, str(source), out=out, splits=["dev"])
    refuses(r"audio \(Audio\), .* \(Value\).*must be one of", download_dataset, str(source), out=out, column="text")
    refuses("is neither a folder nor a dataset of the Hub", download_dataset, str(tmp_path / "none"), out=out)
    (tmp_path / "secret.wav").write_bytes(b"RIFF")
    table = make_table([{"audio": {"bytes": b"text", "path": None}}])
    library.DatasetDict({"train": table}).save_to_disk(tmp_path / "text")
    refuses("row 0 holds no audio of a known format: .* b'text'", download_dataset, str(tmp_path / "text"), out=out)
    refuses("row 0 holds no file", read_cell, {"bytes": None, "path": None}, "Audio", str(source), "row 0")
    secret, words = tmp_path / "secret.wav", "which is outside the dataset and is not read"
    for elsewhere in (
        *(str(secret), f"{source}/../secret.wav", f"file://{secret}", f"simplecache::file://{secret}"),
        *("http://127.0.0.1:9/x.wav", "hf://buckets/x.wav", "hf://datasets/org/wordsmith/x.wav"),
        *("hf://datasets/org/words@main/../../x.wav", f"zip://a.wav::{secret}", f"filecache::{source}/a.wav"),
    ):
        for of in (str(source), "org/words", "."):
            refuses(words, read_cell, {"bytes": None, "path": elsewhere}, "Audio", of, "row 0")
    refuses(r"`label` text: .* all go to labels.csv", download_dataset, str(source), out=out, label="text")
    refuses("is a folder: it has no `revision` v9", download_dataset, str(source), out=out, revision="v9")
    refuses(r"is a folder: .* no `config` small", download_dataset, str(tmp_path / "text"), out=out, config="small")
    library.DatasetDict({"holdout": table}).save_to_disk(tmp_path / "odd")
    refuses("split 'holdout' is not a form of train", download_dataset, str(tmp_path / "odd"), out=out)
    assert not out.exists()
    out.mkdir()
    refuses("already exists", download_dataset, str(source), out=out)


def tar(path: Path, *members: tuple[str, bytes]) -> Path:
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def test_tars_of_webdataset_are_written_by_split_tar_and_key(
    tmp_path: Path, write_audio: Callable[..., Path], capsys: pytest.CaptureFixture
) -> None:
    """Parts, texts and JSONs become labels; names of tars are splits; no key leads out of the folder."""
    files = [flac(write_audio, tmp_path / "made", number) for number in range(3)]
    for name, keys in {"words-train-0": ("a/1", "../../evil"), "words-val-0": ("2",)}.items():
        members = []
        for key in keys:
            labels = json.dumps({"speaker": f"s{len(key)}", "nested": {"x": 1}}).encode()
            members += [(f"{key}.flac", files[len(key) % 3]), (f"{key}.json", labels)]
            members.append((f"{key}.txt", "größer".encode()))
        tar(tmp_path / "in" / f"{name}.tar", *members)
    out = download_dataset(str(tmp_path / "in"), out=tmp_path / "out")
    manifest = index_folder(out, labels=out / "labels.csv", progress=False)
    names = ["%2E.%2F..%2Fevil", "a%2F1"]
    assert manifest.paths == [*(f"train/words-train-0-{n}.flac" for n in names), "valid/words-val-0-2.flac"]
    assert [file.read_bytes() for file in manifest.files] == [files[len(k) % 3] for k in ("../../evil", "a/1", "2")]
    assert manifest.column("speaker") == ["s10", "s3", "s1"]
    assert manifest.column("txt") == ["größer"] * 3
    assert {path.name for path in tmp_path.iterdir()} == {"made", "in", "out"}


def test_classes_of_a_tar_are_folders_and_damage_is_named(tmp_path: Path) -> None:
    pictures = [png(np.full((2, 2), shade, np.uint8)) for shade in range(2)]
    members = [("1.png", pictures[0]), ("1.cls", b"7"), ("2.png", pictures[1]), ("2.cls", b"8")]
    tar(tmp_path / "classes" / "0.tar", *members)
    out = download_dataset(str(tmp_path / "classes"), out=tmp_path / "by class")
    assert sorted(p.relative_to(out).as_posix() for p in out.rglob("*.png")) == ["train/7/0-1.png", "train/8/0-2.png"]
    for damage in (b"{", b'{"a": "\\ud800"}', b'{"\\ud800": 1}', b"[" * 9999):
        tar(tmp_path / "damaged" / "0.tar", ("1.png", pictures[0]), ("1.json", damage))
        with pytest.raises((ValueError, OSError), match=str(tmp_path / "damaged")):
            download_dataset(str(tmp_path / "damaged"), out=tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_name_that_comes_twice_is_named(tmp_path: Path) -> None:
    for folder in "ab":
        (tmp_path / "in" / folder).mkdir(parents=True)
        tar(tmp_path / "in" / folder / "0.tar", ("1.png", png(np.zeros((2, 2), np.uint8))))
    refuses(r"row 1 is .*0-1\.png, .* already", download_dataset, str(tmp_path / "in"), out=tmp_path / "out")


def test_a_tar_that_ends_early_is_named(tmp_path: Path) -> None:
    """Cut between members, joined to another, or with a damaged header: `tarfile` ends there without a word."""
    members = [(f"{number}.png", png(np.full((9, 9), number, np.uint8))) for number in range(4)]
    path = tar(tmp_path / "in" / "a.tar", *members)
    content = path.read_bytes()[: 4 * 1024 + 1024]
    spoilt = content[: 2 * 1024] + b"\xff" * 512 + content[2 * 1024 + 512 :]
    for other in (*(content[:end] for end in range(512, len(content) - 1023, 512)), content * 2, spoilt, content[:700]):
        path.write_bytes(other)
        refuses(r"a\.tar:? .*(cut off|joined|damaged)", download_dataset, str(tmp_path / "in"), out=tmp_path / "out")
    path.write_bytes(content + bytes(8192))  # tars are padded to whole records
    assert len(list(download_dataset(str(tmp_path / "in"), out=tmp_path / "out").rglob("*.png"))) == 4


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("Couldn't reach 'me/birds' on the Hub"),
        FileNotFoundError("Couldn't find any data file: LocalEntryNotFoundError: check your connection"),
    ],
)
def test_a_hub_not_reached_is_not_named_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def load(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(library, "load_dataset", load)
    with pytest.raises(ConnectionError, match=r"'me/birds' is not a folder, and the Hub cannot be reached, .* network"):
        download_dataset("me/birds", out=tmp_path / "out")


@pytest.mark.slow
def test_a_dataset_comes_from_the_hub(speech: tuple[Path, list[bytes]], tmp_path: Path) -> None:
    """A named commit, images in folders and in a zip are read; missing datasets and code are refused."""
    source, files = speech
    tables = {f"data/{each.name}": each.read_bytes() for each in source.iterdir()}
    loose = {"train/ann/1.flac": files[1], "train/bob/2.flac": files[2]}
    pictures = {f"train/{name}/1.png": png(np.full((2, 2), shade, np.uint8)) for shade, name in enumerate("ab")}
    packed = io.BytesIO()
    with ZipFile(packed, "w") as archive:
        archive.writestr("metadata.csv", "file_name,word\n0.png,a\n1.png,b\n")
        for number, content in enumerate(pictures.values()):
            archive.writestr(f"{number}.png", content)
    with serve_hub() as hub:
        hub.repositories = {
            "datasets/org/words": [tables, loose],
            "datasets/org/pictures": [pictures, {"train.zip": packed.getvalue()}],
            "datasets/org/damaged": [{"train.zip": packed.getvalue()[:50]}],
            "datasets/org/code": [{"code.py": b"open('ran', 'w')", **tables}],
        }
        asked = {
            "words": ("org/words", hub.commit("datasets/org/words", 0)),
            "folders": ("org/pictures", hub.commit("datasets/org/pictures", 0)),
            "zip": ("org/pictures", "main"),
            "nowhere": ("org/nowhere", "main"),
            "no revision": ("org/words", "v9"),
            "loose": ("org/words", "main"),
            "damaged": ("org/damaged", "main"),
            "code": ("org/code", "main"),
        }
        calls = [f"download({name!r}, out={out!r}, revision={at!r})" for out, (name, at) in asked.items()]
        told = hub.call(calls, tmp_path)
    assert told[:3] == ["words", "folders", "zip"]
    index_folder(tmp_path / "words", labels=tmp_path / "words/labels.csv", progress=False)
    assert [file.read_bytes() for file in read_manifest(tmp_path / "words").files] == files
    for out, folders in {"folders": ["a", "b"], "zip": ["train", "train"]}.items():
        found = sorted((tmp_path / out / "train").rglob("*.png"))
        assert [file.read_bytes() for file in found] == list(pictures.values())
        assert [file.parent.name for file in found] == folders
    messages = {
        "nowhere": "ValueError: 'org/nowhere' is neither a folder nor a dataset",
        "no revision": "ValueError: 'org/words' is neither a folder nor a dataset",
        "loose": "ValueError: org/words cannot be read: ImportError: ",
        "damaged": "OSError: org/damaged cannot be read: BadZipFile",
        "code": "OSError: org/code cannot be read: RuntimeError: Dataset scripts are no longer supported",
    }
    for out, message in messages.items():
        assert told[list(asked).index(out)].startswith(message)
        assert not (tmp_path / out).exists()
    assert not (tmp_path / "ran").exists()
