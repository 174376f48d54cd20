"""What a table calls an audio file."""

import unicodedata
from pathlib import Path

import numpy as np
import pytest
import soundfile

from cpc.data import index_folder, read_alignments
from cpc.data.audio.manifest import is_end_of, read_manifest, shortest_names
from cpc.probes.abx.items import rows_of_names


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
