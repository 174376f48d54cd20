from collections.abc import Callable
from pathlib import Path

import pytest

from cpc.cli import main
from cpc.data.audio.index import join_labels
from cpc.data.audio.manifest import read_manifest

from .test_index import write_noise

PATHS = ["a/1.wav", "a/2.wav", "b/3.flac"]


def table(folder: Path, text: str, name: str = "labels.csv") -> Path:
    (folder / name).write_text(text)
    return folder / name


@pytest.mark.parametrize(
    "keys", [PATHS, ["1.wav", "2.wav", "3.flac"], ["1", "2", "3"]], ids=["paths", "names", "stems"]
)
def test_files_are_found_by_path_name_and_stem(tmp_path: Path, keys: list[str]) -> None:
    rows = "".join(f"{key}\t{word}\n" for key, word in zip(reversed(keys), ("three", "two", "one"), strict=True))
    found = join_labels(PATHS, table(tmp_path, f"file\tword\n{rows}", "l.tsv"), "file")
    assert found == {"word": ["one", "two", "three"]}


def test_the_command_joins_labels_speakers_and_splits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in PATHS:
        write_noise(tmp_path / path)
    labels = table(tmp_path, 'filename,speaker,split,word\n3.flac,bo,valid,"a, b"\n1.wav,al,train,\n2.wav,al,train,c\n')
    main(["data", "index", str(tmp_path), "--labels", str(labels), "--label_key", "filename"])
    assert "3 files indexed (train 2, valid 1)" in capsys.readouterr().out
    manifest = read_manifest(tmp_path)
    assert list(manifest.columns)[:3] == ["path", "split", "speaker"]
    assert manifest.columns["word"] == ["", "c", "a, b"]
    assert manifest.columns["speaker"] == ["al", "al", "bo"]


def test_files_without_a_row_stay_unlabelled_and_are_counted(tmp_path: Path) -> None:
    labels = table(tmp_path, "path,word\na/2.wav,two\nc/9.wav,nine\n")
    with pytest.warns(UserWarning, match="2 of 3 files have no row and stay .*; 1 of 2 rows do"):
        assert join_labels(PATHS, labels, "path") == {"word": ["", "two", ""]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,word\n1,one\n", "`label_key`='path' is not one of name, word"),
        ("path,word\nx.wav,one\n", r"no cell in column 'path' .* of the 3 files: a cell is 'x.wav', a file 'a/1"),
        ("path,word\n1,one\n1,two\n", r"1 files have more than one row in .*:\n  1"),
        ("path,num_samples\n1,one\n", r"columns \['num_samples'\], which the index fills itself"),
        ("path,split\n1,train\n2,\n3,test\n", r"1 of 3 files have no split in .*:\n  a/2.wav"),
        ("path,word\n", "a header and no rows"),
    ],
)
def test_tables_that_do_not_fit(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        join_labels(PATHS, table(tmp_path, text), "path")


def test_a_name_that_could_mean_two_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"1 names in .* occur in several folders:\n  1.wav"):
        join_labels(["a/1.wav", "b/1.wav", "b/2.wav"], table(tmp_path, "path,word\n1.wav,one\n2.wav,two\n"), "path")


def test_options_that_do_not_fit(tmp_path: Path, refusal: Callable[..., str]) -> None:
    write_noise(tmp_path / "a/1.wav")
    labels = table(tmp_path, "path,speaker\n1.wav,al\n")
    parts = table(tmp_path, "path,duration\n1.wav,9\n", "parts.csv")
    for options, message in (
        (["--labels", str(labels), "--speaker_level", "0"], "columns speaker, which paths already name"),
        (["--label_key", "file"], "--label_key=file"),
        (["--labels", str(parts), "--valid_share", "0", "--test_share", "0"], "a/1.wav: duration is '9', but"),
    ):
        assert message in refusal(["data", "index", str(tmp_path), *options])
