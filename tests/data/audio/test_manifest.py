"""Manifests, and how tables name audio files."""

import textwrap
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import soundfile
from refusals import refuses

from cpc.data import index_folder, read_alignments
from cpc.data.audio.manifest import Manifest, is_end_of, read_manifest, shortest_names
from cpc.probes.abx.items import rows_of_names


def write_csv(path: Path, text: str) -> Path:
    path.write_text(textwrap.dedent(text).lstrip(), encoding="utf-8")
    return path


def test_manifest_round_trip_keeps_any_text(tmp_path: Path) -> None:
    columns = {
        "path": ["a, b.wav", 'c "d".wav', "ü\u2028.wav"],
        "text": ["", "x,y", "tab\tand \x85"],
        "speaker": ["1", "", "2"],
    }
    Manifest(tmp_path, columns).write(tmp_path / "m.csv")
    manifest = read_manifest(tmp_path / "m.csv", check_files=False)
    assert manifest.columns == columns
    assert manifest.label_columns == ["text"]
    assert manifest.groups == ["1", "", "2"]
    assert manifest.splits == [""] * 3


def test_manifest_written_elsewhere_names_the_same_files(tmp_path: Path) -> None:
    manifest = Manifest(tmp_path / "a", {"path": ["x.wav", str(tmp_path / "b/y.wav")]})
    (tmp_path / "b").mkdir()
    manifest.write(tmp_path / "b/m.csv")
    moved = read_manifest(tmp_path / "b/m.csv", check_files=False)
    assert moved.files == manifest.files
    assert moved.paths == [str(tmp_path / "a/x.wav"), "y.wav"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file,speaker\na.wav,1\n", r"needs a column 'path'; found the columns file, speaker"),
        ("path,num_samples\na.wav,12\nb.wav,1.5\n", r"b\.wav: num_samples is '1\.5'"),
        (f"path,num_samples\na.wav,{10**20}\n", r"a\.wav: num_samples is '10+', .* from 1 to 1099511627776"),
        (f"path,num_samples\na.wav,{'9' * 5000}\n", r"a\.wav: num_samples is '9{40}', but"),
        ("path,sample_rate_hz\na.wav,1\n", r"a\.wav: sample_rate_hz is '1', .* from 1000 to 10000000"),
        ("path\na.wav\nb.wav\na.wav\n", r"1 paths occur more than once.*\n  a\.wav"),
        ("path\n", r"no rows"),
        ("path\na.wav\nb.wav\nc.wav\nd.wav\ne.wav\nf.wav\n", r"6 of the 6 files in .* are absent:(?s:.*)and 1 more"),
    ],
)
def test_bad_manifests_name_the_culprit(tmp_path: Path, text: str, message: str) -> None:
    path = write_csv(tmp_path / "m.csv", text)
    refuses(message, read_manifest, path)


def test_select_and_column_say_what_there_is(tmp_path: Path) -> None:
    columns = {"path": ["a", "b", "c"], "split": ["train", "valid", "train"], "num_samples": ["1", "2", "3"]}
    manifest = Manifest(tmp_path, columns)
    assert manifest.select("train").paths == ["a", "c"]
    assert manifest.select("train").column("num_samples") == ["1", "3"]
    refuses(r"is of split 'test'; the splits are train, valid", manifest.select, "test")
    refuses(r"no column 'speaker', only path, split, num_samples", manifest.column, "speaker")
    refuses("no manifest", read_manifest, tmp_path)


@pytest.mark.parametrize("other", ["./a.wav", "deep/../a.wav", "link.wav"])
def test_a_file_that_is_trained_on_is_not_held_out_under_another_name(tmp_path: Path, other: str) -> None:
    (tmp_path / "a.wav").touch()
    (tmp_path / "deep").mkdir()
    (tmp_path / "link.wav").symlink_to("a.wav")
    path = write_csv(tmp_path / "m.csv", f"path,split\na.wav,train\n{other},valid\n")
    refuses(f"two names(?s:.*)a.wav and {other}", read_manifest, path)


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["a/1.wav", "b/2.flac"], ["1", "2"]),
        (["a/1.wav", "b/1.wav"], ["a/1", "b/1"]),
        (["a/1.wav", "a/1.flac"], ["a/1.wav", "a/1.flac"]),
        (["a/spk.001", "b/spk.002"], ["spk.001", "spk.002"]),
    ],
)
def test_shortest_names_differ(paths: list[str], names: list[str]) -> None:
    assert shortest_names(paths) == names


def test_paths_end_in_whole_folders() -> None:
    assert is_end_of("1", "a/1")
    assert is_end_of("a/b/1", "b/1")
    assert not is_end_of("1", "a/11")
    assert not is_end_of("11", "a/1")
    assert not is_end_of("b/1", "a/1")


def test_names_that_differ_by_normal_form_are_one(tmp_path: Path) -> None:
    """A folder from a Mac, with tables typed elsewhere, and the reverse."""
    stem = "a\u0308u\u00dferung"  # the first letter decomposed
    other = unicodedata.normalize("NFC", stem)
    (tmp_path / "s1").mkdir()
    soundfile.write(tmp_path / "s1" / f"{stem}.wav", 0.1 * np.random.default_rng(0).standard_normal(1600), 16000)
    (tmp_path / "labels.csv").write_text(f"path,age\n{other},7\n", encoding="utf-8")
    index_folder(tmp_path, labels=tmp_path / "labels.csv", valid_share=0.0, test_share=0.0, progress=False)
    manifest = read_manifest(tmp_path)
    assert manifest.column("age") == ["7"]
    (tmp_path / "alignments.csv").write_text(f"path,start,end,label\n{other},0,0.05,a\n", encoding="utf-8")
    assert read_alignments(tmp_path).segments(manifest.paths[0])[0].label == "a"
    assert rows_of_names([f"s1/{other}"], manifest.paths) == {f"s1/{other}": 0}
    written = (tmp_path / "manifest.csv").read_text(encoding="utf-8")
    (tmp_path / "manifest.csv").write_text(written.replace(stem, other), encoding="utf-8")
    assert read_manifest(tmp_path).files == manifest.files
