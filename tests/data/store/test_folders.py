import os
import unicodedata
from pathlib import Path

import pytest

from cpc.data.audio.index import index_folder
from cpc.data.store.folders import find_files, refuse_doubles


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.wav", "deep/a.WAV", "deep/er/c.flac", ".hidden/d.wav", "deep/._a.wav", "e.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path


def test_files_are_found_by_suffix_below_links_too_and_never_for_ever(folder: Path) -> None:
    (folder / "deep/again").symlink_to(folder)
    (folder / "elsewhere").mkdir()
    assert find_files(folder, {".wav", ".flac"}, "audio") == ["b.wav", "deep/a.WAV", "deep/er/c.flac"]
    (folder / "z").symlink_to(folder / "deep/er")  # a folder that was met comes once
    assert find_files(folder, {".flac"}, "audio") == ["deep/er/c.flac"]
    assert find_files(folder / "z", {".flac"}, "audio") == ["c.flac"]
    with pytest.raises(ValueError, match=r"no image below .* \(found: .*3 \.wav.*\); .* suffix: \.png; so it is"):
        find_files(folder, {".png"}, "image", "; so it is")


@pytest.mark.parametrize(
    "other", ["./b.wav", "deep/../b.wav", "deep//../b.wav", "link.wav", "deep/up/b.wav", "{}/b.wav"]
)
def test_one_file_under_two_names_is_refused(folder: Path, other: str) -> None:
    (folder / "link.wav").symlink_to("b.wav")
    (folder / "deep/up").symlink_to("..")
    other = other.format(folder)
    with pytest.raises(ValueError, match=f"have two names(?s:.*)  b.wav and {other}\nkeep one"):
        refuse_doubles(folder, ["b.wav", "deep/a.WAV", other])
    refuse_doubles(folder, ["deep/a.WAV", other])


@pytest.mark.parametrize("name", ["日本語が.wav", "José/a.wav", "Việt.wav"])
def test_names_of_two_unicode_forms_are_one_name(tmp_path: Path, name: str) -> None:
    """Linux keeps both files, macOS would have one."""
    forms = [unicodedata.normalize(form, name) for form in ("NFC", "NFD")]
    for each in forms:
        (tmp_path / each).parent.mkdir(exist_ok=True)
        (tmp_path / each).touch()
    if len({(tmp_path / each).stat().st_ino for each in forms}) < 2:
        pytest.skip("this file system holds names in one form")
    with pytest.raises(ValueError, match="have two names") as caught:
        index_folder(tmp_path, progress=False)
    assert f"{forms[1]!a} and {forms[0]!a}, of different Unicode forms" in str(caught.value)
    refuse_doubles(tmp_path, forms[:1])


def test_copies_and_equal_names_in_other_folders_are_other_files(folder: Path) -> None:
    os.link(folder / "b.wav", folder / "copy.wav")
    (folder / "deep/b.wav").touch()
    refuse_doubles(folder, ["b.wav", "copy.wav", "deep/b.wav"])


def test_files_of_a_medium_in_another_format_are_counted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.HEIC", "deep/b.heic", "deep/c.mov", "notes.docx", "list.csv", "d.png", "e.m4a"):
        (folder / name).touch()
    find_files(folder, {".png"}, "image")
    told = capsys.readouterr().err
    assert (
        told == f"data: {folder}: left out 2 .heic, 1 .mov, because these formats are not read: convert these files\n"
    )
    find_files(folder, {".wav"}, "audio")
    assert "left out 1 .m4a, 1 .mov, because these formats" in capsys.readouterr().err
    find_files(folder, {".txt"}, "text")
    assert "left out 1 .docx, because these formats" in capsys.readouterr().err
    (folder / "only").mkdir()
    (folder / "only/f.png").touch()
    find_files(folder / "only", {".png"}, "image")
    assert capsys.readouterr().err == ""
