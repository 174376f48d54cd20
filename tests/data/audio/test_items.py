"""Items of ABX tests: read, made of alignments, and refused where they are damaged."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from refusals import refuses

from cpc.cli import main
from cpc.data.audio.items import HEADER, Items, read_items, write_items

LINE = "ann-1 0.1 0.25 ae b p ann"


def corpus(
    folder: Path, segments: Sequence[str], *, paths: Sequence[str] = ("ann/1.wav",), speaker: str = "ann"
) -> Path:
    """A manifest and its alignments, each segment as `path start end label`."""
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).touch()
    rows = [f"{path},{split},{speaker}" for path, split in zip(paths, ("train", "test"), strict=False)]
    (folder / "manifest.csv").write_text("\n".join(["path,split,speaker", *rows]))
    lines = [segment.replace(" ", ",") for segment in segments]
    (folder / "alignments.csv").write_text("\n".join(["path,start,end,label", *lines]))
    return folder


BAP = ["ann/1.wav 0.0 0.1 sil", "ann/1.wav 0.1 0.15 b", "ann/1.wav 0.15 0.25 ae", "ann/1.wav 0.25 0.3 p"]


def test_items_are_phones_with_neighbours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = corpus(tmp_path, [*BAP, "ann/1.wav 0.5 0.6 k", "ann/1.wav 0.6 0.7 ae", "ann/1.wav 0.71 0.8 t"])
    main(["data", "items", str(folder), "--out", str(folder / "x.item")])
    assert (folder / "x.item").read_text().splitlines() == [
        "#file onset offset #phone prev-phone next-phone speaker",
        "1 0.1 0.15 b sil ae ann",  # p and k have a gap beside them, the second ae none worth the name
        "1 0.15 0.25 ae b p ann",
        "1 0.6 0.7 ae k t ann",
    ]
    assert "3 items of 2 phones of 1 speakers in 1 files written" in capsys.readouterr().out


def test_triphones_span_their_neighbours_and_no_silence(tmp_path: Path) -> None:
    folder = corpus(tmp_path, BAP)
    items = write_items(folder, folder / "x.item", span="triphone")
    assert [items.line(row) for row in range(len(items))] == ["1 0.1 0.3 ae b p ann"]
    assert write_items(folder, folder / "x.item", silences=("b",)).phones == ["ae"]


def test_one_split_and_names_that_differ(tmp_path: Path) -> None:
    second = [line.replace("ann/1", "bob/1") for line in BAP]
    folder = corpus(tmp_path, [*BAP, *second], paths=("ann/1.wav", "bob/1.wav"))
    assert set(write_items(folder, folder / "x.item", split="test").files) == {"bob/1"}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    items = Items(["a", "b/c"], np.array([0.0, 1234.567891]), np.array([1 / 3, 1235.5]), *[["x", "y"]] * 4)
    items.write(tmp_path / "x.item")
    read = read_items(tmp_path / "x.item")
    assert (read.files, read.phones, read.speakers) == (items.files, items.phones, items.speakers)
    times = [read.onset_seconds, read.offset_seconds]
    np.testing.assert_allclose(times, [[0, 1234.567891], [1 / 3, 1235.5]], atol=1e-6)
    assert read.take([1]).line(0) == "b/c 1234.567891 1235.5 y y y y"


def test_items_that_would_lose_their_length_are_not_written(tmp_path: Path) -> None:
    items = Items(["a", "b"], np.array([0.1, 0.1]), np.array([0.2, 0.1 + 4e-10]), *[["x", "y"]] * 4)
    refuses(r"1 items are shorter than a microsecond.*\n  b 0\.1 0\.1 y", items.write, tmp_path / "x.item")
    assert not (tmp_path / "x.item").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "line 1: '' is not the header"),
        (HEADER, "has a header and no items"),
        (f"#file onset offset #phone speaker prev-phone next-phone\n{LINE}", "is not the header"),
        (f"{HEADER}\n{LINE}\nann-1 0.1 0.25 ae b p", "line 3: 6 fields under the 7"),
        (f"{HEADER}\n\n{LINE.replace('0.25', 'x')}", "line 3: the item is from 0.1 to x s"),
        (f"{HEADER}\n{LINE.replace('0.25', '0.1')}", "line 2: the item is from 0.1 to 0.1 s"),
        (f"{HEADER}\n{LINE}\n\n{LINE.replace('0.25', '.250')}", "from 0.1 to .250 s is in line 2 already"),
    ],
)
def test_damaged_item_files_are_refused(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.item").write_text(content)
    with pytest.raises(ValueError, match=r"x\.item") as refusal:
        read_items(tmp_path / "x.item")
    assert message in str(refusal.value)


def test_corpora_without_items_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "x.item"
    folder = corpus(tmp_path / "a", BAP[:2])
    refuses("no phone of the 1 files has a neighbour on both sides", write_items, folder, out)
    (folder / "alignments.csv").unlink()
    refuses(r"there is no .*alignments\.csv: name them with `alignments`", write_items, folder, out)
    refuses(r"ann/1\.wav has no speaker", write_items, corpus(tmp_path / "b", BAP, speaker=""), out)
    refuses("1 names .* or hold a blank", write_items, corpus(tmp_path / "c", BAP, speaker="ann lee"), out)
    folder = corpus(tmp_path / "d", BAP)
    (folder / "manifest.csv").write_text("path\nann/1.wav\n")
    refuses("has no column 'speaker', only path", write_items, folder, out)
    assert not out.exists()
