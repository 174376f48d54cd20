import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from cpc.cli import main
from cpc.data.audio.index import index_folder
from cpc.data.audio.manifest import read_manifest
from cpc.data.images.sources import read_image_source
from cpc.data.store.tars import read_samples
from cpc.interop.tars import tar_corpus, untar_corpus


def wav(seed: int, num_samples: int = 1000) -> bytes:
    stream = io.BytesIO()
    soundfile.write(stream, np.random.default_rng(seed).standard_normal(num_samples) / 10, 16000, format="WAV")
    return stream.getvalue()


def png(seed: int) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (8, 8), np.uint8)).save(stream, "png")
    return stream.getvalue()


def tar(path: Path, *members: tuple[str, bytes], kind: bytes = tarfile.REGTYPE, size: int | None = None) -> Path:
    """A tar as its writer wants it, whose members may lie about their size."""
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as out:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content) if size is None else size
            member.type = kind
            out.write(member.tobuf() + content + bytes(-len(content) % 512))
        out.write(bytes(1024))
    return path


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    (folder / "b").mkdir(parents=True)
    for place in range(7):
        (folder / "b" / f"{place}.wav").write_bytes(wav(place))
    (folder / "words.csv").write_text(
        "file,speaker,split,word\n" + "".join(f"{i},s{i % 2},train,w{i}\n" for i in range(7))
    )
    main(["data", "index", str(folder), "--labels", str(folder / "words.csv"), "--label_key", "file"])
    return folder


def test_audio_comes_back_as_it_was(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files, order, labels, speakers and splits; tars end at a size, and equal corpora make equal ones."""
    main(["data", "tar", str(corpus), "--out", str(tmp_path / "tars"), "--tar_mb", "0.008"])
    assert "7 files in 3 tars" in capsys.readouterr().out
    back = str(tmp_path / "back")
    main(["data", "untar", str(tmp_path / "tars"), "--out", back])
    main(["data", "index", back, "--labels", f"{back}/labels.csv"])
    before, after = read_manifest(corpus), read_manifest(tmp_path / "back")
    assert {name: before.columns[name] for name in after.columns} == after.columns
    assert after.columns.keys() >= {"path", "split", "speaker", "word"}
    for path in before.paths:
        assert (corpus / path).read_bytes() == (tmp_path / "back" / path).read_bytes()
    main(["data", "tar", str(tmp_path / "back"), "--out", str(tmp_path / "again"), "--tar_mb", "0.008"])
    for path in (tmp_path / "tars").iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()


def test_others_tars_name_files_by_tar_and_key(tmp_path: Path) -> None:
    """Tars of other programs are read: several parts, classes and texts, a folder in the key, capital letters."""
    first = tar(
        tmp_path / "train-0.tar",
        ("a/001.seg.json", b"{}"),
        ("a/001.wav", wav(1)),
        ("a/001.cls", b"7\n"),
        ("a/001.json", b'{"speaker": "bo", "seconds": 0.5, "nested": {"x": 1}}'),
        ("a/002.WAV", wav(2)),
        ("a/002.txt", "größer".encode()),
    )
    untar_corpus([first], out=tmp_path / "out")
    index_folder(
        tmp_path / "out", labels=tmp_path / "out" / "labels.csv", valid_share=0.0, test_share=0.0, progress=False
    )
    manifest = read_manifest(tmp_path / "out")
    assert manifest.paths == ["train-0/a/001.wav", "train-0/a/002.wav"]
    assert manifest.columns["cls"] == ["7", ""]
    assert manifest.columns["txt"] == ["", "größer"]
    assert manifest.columns["speaker"] == ["bo", ""]
    assert manifest.columns["seconds"] == ["0.5", ""]


def test_images_with_classes(tmp_path: Path) -> None:
    tar(tmp_path / "0.tar", ("1.png", png(1)), ("1.cls", b"cat"), ("2.png", png(2)), ("2.cls", b"dog"))
    untar_corpus([tmp_path / "0.tar"], out=tmp_path / "out")
    table = read_image_source(tmp_path / "out", valid_share=0.0)
    assert sorted(table.names) == ["cat/0-1.png", "dog/0-2.png"]
    main(["data", "tar", str(tmp_path / "out"), "--out", str(tmp_path / "tars")])
    main(["data", "untar", str(tmp_path / "tars"), "--out", str(tmp_path / "back")])
    assert (tmp_path / "back" / "dog" / "0-2.png").read_bytes() == png(2)


def images_of(folder: Path) -> dict[str, tuple[str, str | None]]:
    """The split and the class of each image."""
    table = read_image_source(folder, valid_share=0.0)
    classes = [table.classes[label] if label >= 0 else None for label in table.labels.tolist()]
    return dict(zip(table.names, zip(table.splits, classes, strict=True), strict=True))


def test_tars_of_images_without_classes_have_none(tmp_path: Path) -> None:
    """Neither the tar's name nor the folder of a key is one; names of tars may say splits."""
    for place in range(2):
        tar(tmp_path / f"in/{place:05}.tar", (f"a/{place}.png", png(place)), (f"b{place}.png", png(place + 2)))
    untar_corpus([tmp_path / "in"], out=tmp_path / "none")
    assert set(images_of(tmp_path / "none").values()) == {("unlabelled", None)}
    tar(tmp_path / "in/00002.tar", ("1.png", png(5)), ("1.cls", b"cat"))
    untar_corpus([tmp_path / "in"], out=tmp_path / "some")
    found = images_of(tmp_path / "some")
    assert found.pop("train/cat/00002-1.png") == ("train", "cat")
    assert len(found) == 4
    assert set(found.values()) == {("unlabelled", None)}
    for name in ("imagenet-train-000", "imagenet-val-000"):
        tar(
            tmp_path / f"named/{name}.tar",
            ("x/1.png", png(1)),
            ("x/1.cls", b"dog"),
            ("2.png", png(2)),
            ("2.cls", b"cat"),
        )
        tar(tmp_path / f"bare/{name}.tar", ("x/1.png", png(1)), ("2.png", png(2)))
    untar_corpus([tmp_path / "named"], out=tmp_path / "classes")
    assert sorted(images_of(tmp_path / "classes").values()) == [
        ("train", "cat"),
        ("train", "dog"),
        ("valid", "cat"),
        ("valid", "dog"),
    ]
    untar_corpus([tmp_path / "bare"], out=tmp_path / "splits")
    assert sorted(images_of(tmp_path / "splits").values()) == [("train", None)] * 2 + [("valid", None)] * 2
    with pytest.raises(ValueError, match=r"some tars name a split \(train\), but tars with the classes cat do not"):
        untar_corpus([tmp_path / "in/00002.tar", tmp_path / "named/imagenet-train-000.tar"], out=tmp_path / "both")


def below(path: str) -> list[tuple[str, bytes]]:
    """A sample whose JSON gives its file this place."""
    return [("b.wav", wav(1)), ("b.json", json.dumps({"path": path}).encode())]


@pytest.mark.parametrize(
    ("members", "options", "message"),
    [
        ([("../../evil.wav", wav(1))], {}, r"would be written to 't/../../evil.wav'"),
        ([("1.wav", wav(1)), ("1.json", b'{"path": "../evil.wav"}')], {}, "would be written to '../evil.wav'"),
        ([("1.wav", wav(1)), ("1.json", b'{"path": "/tmp/evil.wav"}')], {}, "would be written to '/tmp/evil.wav'"),
        ([("1.wav", wav(1)), ("1.json", b'{"path": "run.sh"}')], {}, "would be written to 'run.sh'"),
        ([("1.wav", wav(1)), ("1.json", b'{"path": "c:/a.wav"}')], {}, "would be written to"),
        ([("1.wav", wav(1)), ("1.json", b'{"path": "."}')], {}, r"would be written to '\.'"),
        ([("1.wav", wav(1)), ("1.json", b'{"path": "./"}')], {}, r"would be written to '\./'"),
        ([("a.wav", wav(1)), *below("t/a.wav/b.wav")], {}, r"t/a\.wav/b\.wav' \(File exists\): rename it"),
        ([*below("t/a.wav/b.wav"), ("a.wav", wav(1))], {}, r"t/a\.wav' \(Is a directory\): rename it"),
        (below("a" * 300 + ".wav"), {}, r"aaa\.wav' \(File name too long\): rename it"),
        (below("a/" * 3000 + "b.wav"), {}, r"b\.wav' \(File name too long\): rename it"),
        ([("1.wav", wav(1)), ("1.json", b'{"a": "\\ud800"}')], {}, "JSON of sample '1' holds an incomplete character"),
        ([("1.wav", wav(1)), ("1.json", b'{"\\ud800": 1}')], {}, "JSON of sample '1' holds an incomplete character"),
        ([("1.wav", b"")], {"kind": tarfile.SYMTYPE}, "is a link or a device"),
        ([("1.wav", b"")], {"kind": tarfile.CHRTYPE}, "is a link or a device"),
        ([("1.json", b"{}")], {}, "needs one file of audio, or one image"),
        ([("1.wav", wav(1)), ("1.png", png(1))], {}, "needs one file of audio, or one image"),
        ([("1.wav", wav(1)), ("1.wav", wav(2))], {}, "occurs twice"),
        ([("1.wav", wav(1)), ("2.wav", wav(2)), ("1.json", b"{}")], {}, "do not follow each other"),
        ([("1.wav", wav(1)), ("1.json", b"[1]")], {}, "not an object of names and values"),
        ([("1.wav", wav(1)), ("1.json", b"{")], {}, "the JSON of sample '1' is damaged"),
        ([("1.wav", wav(1)), ("1.txt", b"\xff")], {}, "byte 0: 0xff is not UTF-8"),
        ([("1.wav", wav(1)), ("2.png", png(1))], {}, "is of images, but others are not"),
        ([("1.wav", wav(1))], {"size": 10**9}, "should have 1000000000 bytes"),
    ],
)
def test_hostile_and_damaged_tars(tmp_path: Path, members: list, options: dict, message: str) -> None:
    """Each is named, and nothing is written."""
    place = tmp_path / "in"
    place.mkdir()
    tar(place / "t.tar", *members, **options)
    with pytest.raises(ValueError, match=message):
        untar_corpus([place], out=tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_what_cannot_be_used_is_left_out_when_asked_for(tmp_path: Path) -> None:
    good = tar(tmp_path / "0.tar", ("1.wav", wav(1)), ("2.json", b"{}"), *below("0/1.wav/2.wav"), ("3.wav", wav(3)))
    cut = tar(tmp_path / "1.tar", ("1.wav", wav(4)), ("2.wav", wav(5)))
    cut.write_bytes(cut.read_bytes()[:4000])
    with pytest.warns(UserWarning, match=r"left out 3 samples or rests of tars:\n(.|\n)*needs one file(.|\n)*1.tar"):
        untar_corpus([good, cut], out=tmp_path / "out", skip_bad=True)
    written = sorted(path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.wav"))
    assert written == ["0/1.wav", "0/3.wav", "1/1.wav"]


def test_a_tar_that_ends_early_is_named(tmp_path: Path) -> None:
    """Cut between members, joined to another, or with a damaged header: `tarfile` ends there without a word."""
    members = [(f"{number}.wav", wav(number, 200)) for number in range(4)]
    content = tar(tmp_path / "a.tar", *members).read_bytes()
    spoilt = content[: 2 * 1024] + b"\xff" * 512 + content[2 * 1024 + 512 :]
    cuts = [content[:end] for end in range(512, len(content) - 1023, 512)]
    for other in (*cuts, content + content, content + bytes(512) + content, spoilt):
        (tmp_path / "a.tar").write_bytes(other)
        with pytest.raises(ValueError, match=r"a\.tar:? .*(cut off|goes on after byte|damaged|is said to have)"):
            list(read_samples(tmp_path / "a.tar"))
    (tmp_path / "a.tar").write_bytes(content + bytes(8192))  # tars are padded to whole records
    assert len(list(read_samples(tmp_path / "a.tar"))) == 4


@pytest.mark.fuzz
@settings(deadline=None)
@given(st.binary(max_size=600), st.integers(0, 2600), st.integers(0, 2600))
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, at: int, cut: int
) -> None:
    path = tar(tmp_path_factory.mktemp("fuzz") / "t.tar", ("1.txt", b"x" * 300), ("1.json", json.dumps({}).encode()))
    content = path.read_bytes()
    path.write_bytes((content[:at] + noise + content[at + len(noise) :])[: max(cut, 1)])
    told = str(path)
    try:
        for sample in read_samples(path):
            assert sample.parts
    except ValueError as error:
        told = str(error)
    assert str(path) in told


def test_names_that_are_no_utf_8_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "images" / "caf\udce9"
    folder.mkdir(parents=True)
    for place in range(3):
        (folder / f"{place}.png").write_bytes(png(place))
    with pytest.raises(ValueError, match=r"^3 names are not UTF-8(.|\n)*caf\?/0\.png(.|\n)*rename them"):
        tar_corpus(tmp_path / "images", out=tmp_path / "tars")
    assert not (tmp_path / "tars").exists()
    folder.rename(tmp_path / "images" / "cafe")
    tar_corpus(tmp_path / "images", out=tmp_path / "tars")
