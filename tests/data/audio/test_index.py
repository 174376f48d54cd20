import csv
import os
from pathlib import Path

import numpy as np
import pytest
import soundfile
from refusals import refuses
from shared_data import real

from cpc.data import index_folder, read_manifest
from cpc.data.audio.headers import Header, read_header
from cpc.data.store.contents import split_called

UNSPLIT = {"valid_share": 0.0, "test_share": 0.0}


def write_noise(path: Path, num_samples: int = 1000, rate: int = 16000, channels: int = 1, **options: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(num_samples)
    soundfile.write(path, 0.1 * rng.standard_normal((num_samples, channels)), rate, **options)
    return path


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Six files of four formats: split / speaker / utterance."""
    root = tmp_path / "corpus"
    write_noise(root / "train/anna/1.wav", 1000)
    write_noise(root / "train/anna/2.flac", 1100, 44100, channels=2)
    write_noise(root / "train/bert/3.ogg", 1200, 8000)
    write_noise(root / "train/bert/4.mp3", 5000, 22050, channels=2)
    write_noise(root / "test/cleo/5.WAV", 1300, format="WAV")
    write_noise(root / "test/cleo/6.aiff", 1400, 48000)
    (root / "test/cleo/5.txt").write_text("a transcript")
    write_noise(root / "test/cleo/._5.wav")
    write_noise(root / ".cpc_cache/old.wav")
    return root


def test_index_reads_headers_levels_and_every_format(corpus: Path) -> None:
    manifest = index_folder(corpus, speaker_level=1, split_level=0, progress=False)
    with (corpus / "manifest.csv").open(newline="") as stream:
        rows = list(csv.reader(stream))
    assert rows == [
        ["path", "split", "speaker", "num_samples", "sample_rate_hz", "num_channels"],
        ["test/cleo/5.WAV", "test", "cleo", "1300", "16000", "1"],
        ["test/cleo/6.aiff", "test", "cleo", "1400", "48000", "1"],
        ["train/anna/1.wav", "train", "anna", "1000", "16000", "1"],
        ["train/anna/2.flac", "train", "anna", "1100", "44100", "2"],
        ["train/bert/3.ogg", "train", "bert", "1200", "8000", "1"],
        ["train/bert/4.mp3", "train", "bert", "5000", "22050", "2"],
    ]
    assert manifest == read_manifest(corpus) == read_manifest(corpus / "manifest.csv")
    assert not list(corpus.glob("*.partial"))
    assert not list(corpus.glob("*.tmp"))


def test_index_takes_any_named_groups_as_columns(tmp_path: Path) -> None:
    for name in ("7_jackson_0", "7_jackson_12", "3_theo_5"):
        write_noise(tmp_path / f"recordings/{name}.wav")
    pattern = r"(?P<digit>\d)_(?P<speaker>[a-z]+)_(?P<index>\d+)"
    manifest = index_folder(tmp_path, speaker_pattern=pattern, split_level=-1, progress=False)
    assert manifest.label_columns == ["digit", "index"]
    assert manifest.column("speaker") == ["theo", "jackson", "jackson"]
    assert manifest.column("digit") == ["3", "7", "7"]
    assert manifest.column("split") == ["recordings"] * 3


def test_index_never_replaces_a_manifest_unasked(corpus: Path) -> None:
    index_folder(corpus, progress=False)
    refuses(r"manifest\.csv exists already; set `overwrite`", index_folder, corpus, progress=False)
    write_noise(corpus / "test/cleo/8.wav")
    assert len(index_folder(corpus, overwrite=True, progress=False)) == 7
    refuses("not a folder", index_folder, corpus / "nowhere", progress=False)


def cut(path: Path, fraction: float) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * fraction)])


def test_index_names_bad_files_of_every_kind(corpus: Path) -> None:
    (corpus / "empty.wav").touch()
    (corpus / "text.mp3").write_text("no audio at all\n" * 50)
    (corpus / "text.wav").write_text("no audio at all\n" * 50)
    (corpus / "gone.wav").symlink_to(corpus / "nowhere.wav")
    write_noise(corpus / "none.wav", 0)
    for name in ("cut.wav", "cut.aiff", "cut.au"):
        cut(write_noise(corpus / name, 9000), 0.6)
    for fraction in (0.5, 0.999):
        cut(write_noise(corpus / f"cut{fraction}.flac", 9000), fraction)
    with pytest.raises(ValueError, match=r"10 of 16 audio files") as caught:
        index_folder(corpus, progress=False)
    assert "... and 5 more" in str(caught.value)
    assert "skip_bad" in str(caught.value)
    assert not (corpus / "manifest.csv").exists()

    for reason, names in {
        "is empty": "empty.wav",
        "not audio": "text.mp3 text.wav",
        "no such file": "gone.wav",
        "no samples": "none.wav",
        "truncated": "cut.wav cut.aiff cut0.999.flac",
    }.items():
        for name in names.split():
            refuses(f"{name}: .*{reason}", read_header, corpus / name)

    with pytest.warns(UserWarning, match=r"went on without 10 of 16 audio files"):
        manifest = index_folder(corpus, skip_bad=True, progress=False)
    assert len(manifest) == 6


def test_a_disk_error_is_named_with_its_file(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_once(file: Path) -> Header:
        if file.name == "4.mp3":
            raise OSError(5, "Input/output error")
        return read_header(file)

    monkeypatch.setattr("cpc.data.audio.headers.read_header", fail_once)
    refuses(r"1 of 6 (.|\n)*4\.mp3: cannot be read \(Input/output error\)", index_folder, corpus, progress=False)
    with pytest.warns(UserWarning, match=r"went on without 1 of 6 audio files(.|\n)*4\.mp3"):
        assert len(index_folder(corpus, skip_bad=True, progress=False)) == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"speaker_level": 2}, r"6 of 6 files lie in fewer folders than speaker_level=2 needs"),
        ({"speaker_pattern": "(?P<speaker>[a-z"}, "not a regular expression"),
        ({"speaker_pattern": "[a-z]+"}, "no named group"),
        ({"speaker_pattern": "(?P<speaker>anna|bert)"}, r"2 of 6 paths do not match .*:\n  test/cleo/5"),
        ({"speaker_pattern": "(?P<speaker>.)", "speaker_level": 0}, "names speaker"),
        ({"split_level": 0, "valid_share": 0.1}, r"valid_share=0\.1, .*`split_level`, `speaker_pattern` or `labels`"),
        ({"speaker_pattern": "(?P<split>train|test)", "split_by": "speaker"}, "split_by='speaker', seed=0 draw"),
        ({"valid_share": 0.6, "test_share": 0.4}, r"valid_share=0\.6 and test_share=0\.4 must not"),
        ({"split_by": "speaker"}, r"6 of 6 files have no speaker, but split_by='speaker':\n  test/cleo/5"),
        ({"split_by": "speaker", "speaker_level": 0}, "test, train: these 2 are too few, since train, valid"),
    ],
)
def test_index_options_that_do_not_fit(corpus: Path, options: dict, message: str) -> None:
    refuses(message, index_folder, corpus, **options, progress=False)


def test_a_plain_folder_is_split_by_chance(corpus: Path) -> None:
    """By folders named anything; nothing is asked for, so all three splits are there."""
    manifest = index_folder(corpus, speaker_level=1, progress=False)
    assert set(manifest.column("split")) == {"train", "valid", "test"}
    assert manifest.columns == read_manifest(corpus).columns
    by_speaker = index_folder(corpus, speaker_level=1, split_by="speaker", overwrite=True, progress=False)
    pairs = set(zip(by_speaker.column("split"), by_speaker.column("speaker"), strict=True))
    assert sorted(speaker for _, speaker in pairs) == ["anna", "bert", "cleo"]
    assert {split for split, _ in pairs} == {"train", "valid", "test"}
    assert "split" not in index_folder(corpus, **UNSPLIT, overwrite=True, progress=False).columns


@pytest.mark.parametrize(
    ("folders", "splits"), [("training dev eval", "train valid test"), ("train-clean-5 dev-clean-2", "train valid")]
)
def test_first_folders_say_splits(
    tmp_path: Path, folders: str, splits: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for place, folder in enumerate(folders.split()):
        for number in range(3):
            write_noise(tmp_path / folder / f"anna/{number}.wav", 900 + 10 * place + number)
    found = index_folder(tmp_path, progress=False)
    split_of = dict(zip(folders.split(), splits.split(), strict=True))
    assert found.columns["split"] == [split_of[path.split("/")[0]] for path in found.paths]
    counts = ", ".join(f"{split} 3" for split in splits.split())
    assert f"manifest.csv: {len(found)} files, splits {counts}\n" in capsys.readouterr().err
    by_level = index_folder(tmp_path, tmp_path / "b.csv", split_level=0, progress=False).columns["split"]
    assert by_level == [split_called(path.split("/")[0]) or path.split("/")[0] for path in found.paths]


def test_training_files_are_held_out_if_no_folder_says_valid(tmp_path: Path) -> None:
    for number in range(12):
        write_noise(tmp_path / f"Train/{number}.wav", 900 + number)
    write_noise(tmp_path / "Testing/0.wav")
    found = index_folder(tmp_path, progress=False)
    assert found.column("split")[0] == "test"
    assert set(found.column("split")[1:]) == {"train", "valid"}


def test_a_split_is_drawn_among_the_files_that_can_be_used(corpus: Path) -> None:
    """However many bad files there are, no split is made of them alone."""
    for number in range(200):
        (corpus / f"bad{number}.wav").touch()
    with pytest.warns(UserWarning, match="went on without 200 of 206 audio files"):
        manifest = index_folder(corpus, skip_bad=True, progress=False)
    assert set(manifest.column("split")) == {"train", "valid", "test"}


def test_a_real_corpus_by_its_levels(tmp_path: Path) -> None:
    root = real("an4/audio")
    manifest = index_folder(root, tmp_path / "an4.csv", split_level=0, speaker_level=1, progress=False)
    assert len(manifest.select("an4_clstk")) == 948
    assert len(set(manifest.select("an4test_clstk").column("speaker"))) == 10
    assert manifest.seconds.sum() == pytest.approx(2903, abs=1)


def test_a_name_that_is_not_utf_8(tmp_path: Path) -> None:
    write_noise(tmp_path / "a.wav").rename(tmp_path / os.fsdecode(b"caf\xe9.wav"))
    manifest = index_folder(tmp_path, **UNSPLIT, progress=False)
    assert [os.fsencode(path) for path in manifest.paths] == [b"caf\xe9.wav"]
    assert manifest.column("num_samples") == ["1000"]
