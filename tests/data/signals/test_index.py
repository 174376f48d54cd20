"""`cpc data index` of a folder of signals: a manifest with path, split and group, which the reader takes."""

import csv
from pathlib import Path

import numpy as np
import pytest
from refusals import refuses

from cpc.cli import main
from cpc.data import Signals, index_folder
from cpc.encoders import SignalEncoder


def write(path: Path, num_samples: int = 60) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(num_samples).normal(size=(num_samples, 2))
    np.savetxt(path, values, "%.4f", ",", header="x,y", comments="")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for person in range(10):
        for day in range(2):
            write(tmp_path / "rec" / f"p{person}" / f"{day}_{'walk' if day else 'sit'}.csv")
    np.save(tmp_path / "rec" / "p9" / "2_sit.npy", np.ones((50, 2)))
    (tmp_path / "rec" / "labels.csv").write_text("path,start,end,label\np0/0_sit.csv,0,1,rest\n")
    return tmp_path / "rec"


def read(folder: Path) -> list[dict[str, str]]:
    with (folder / "manifest.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_a_group_is_in_one_split(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["data", "index", str(folder), "--speaker_level", "0", "--speaker_pattern", "_(?P<posture>[a-z]+)"])
    rows = read(folder)
    assert list(rows[0]) == ["path", "split", "group", "posture"]
    assert [row["path"] for row in rows] == sorted(str(path.relative_to(folder)) for path in folder.glob("p*/*"))
    split_of = {row["group"]: row["split"] for row in rows}
    assert all(split_of[row["group"]] == row["split"] for row in rows)
    assert all(row["path"].startswith(f"{row['group']}/") for row in rows)
    assert set(split_of.values()) == {"train", "valid", "test"}
    assert "21 files indexed (" in capsys.readouterr().out


def test_the_reader_takes_the_manifest(folder: Path) -> None:
    (folder / "p9" / "2_sit.npy").unlink()
    index_folder(folder, speaker_level=0, speaker_pattern="_(?P<posture>[a-z]+)", valid_share=0.3, progress=False)
    data = Signals(source=str(folder), sample_rate_hz=10.0, window_seconds=2.0)
    corpus = data.open(SignalEncoder(2, 4, 10.0))
    assert corpus.speakers == [f"p{person}" for person in range(10)]
    assert [row["split"] for row in read(folder)] == list(corpus.table.splits)
    assert set(corpus.table.labels) == {"posture", "interval"}


def test_folders_that_are_splits(tmp_path: Path) -> None:
    for split, people in (("train", 6), ("test", 2)):
        for person in range(people):
            for day in range(2):
                write(tmp_path / split / f"p{person}" / f"{day}.csv")
    index_folder(tmp_path, speaker_level=1, progress=False)
    rows = read(tmp_path)
    assert all((row["split"] == "test") == row["path"].startswith("test/") for row in rows)
    held_out = {row["group"] for row in rows if row["split"] == "valid"}
    assert held_out
    assert held_out.isdisjoint(row["group"] for row in rows if row["split"] == "train")


@pytest.mark.parametrize("key", ["p{person}/{day}_{what}.csv", "{day}_{what}.csv"], ids=["paths", "names"])
def test_a_table_of_labels_in_the_folder(tmp_path: Path, key: str) -> None:
    """The table is no recording, and recordings of a subject stay together."""
    lines = []
    for person in range(6):
        for day in (2 * person, 2 * person + 1):
            what = "walk" if day % 3 else "sit"
            write(tmp_path / f"p{person}" / f"{day}_{what}.csv")
            lines.append(f"{key.format(person=person, day=day, what=what)},{what},s{person}\n")
    table = tmp_path / "people.csv"
    table.write_text("file,activity,subject\n" + "".join(lines))
    index_folder(tmp_path, labels=table, label_key="file", valid_share=0.4, test_share=0.0, progress=False)
    rows = read(tmp_path)
    assert list(rows[0]) == ["path", "split", "group", "activity"]
    assert len(rows) == 12
    assert all(row["path"].startswith(f"p{row['group'][1:]}/") for row in rows)
    assert all(row["path"].endswith(f"_{row['activity']}.csv") for row in rows)
    assert len({(row["group"], row["split"]) for row in rows}) == 6


def test_without_groups_there_is_no_column_and_an_index_with_another_name_is_no_recording(folder: Path) -> None:
    index_folder(folder, progress=False)
    assert list(read(folder)[0]) == ["path", "split"]
    for _ in range(2):
        assert len(index_folder(folder, folder / "all.csv", overwrite=True, progress=False)) == 21


def test_refusals(folder: Path, tmp_path: Path) -> None:
    (folder / "p0" / "3_sit.csv").write_text("")
    refuses("1 of 22 signal files below", index_folder, folder, progress=False)
    with pytest.warns(UserWarning, match="went on without 1 of 22 signal files"):
        assert len(index_folder(folder, skip_bad=True, progress=False)) == 21
    refuses("`num_ray_workers`=2 is for audio", index_folder, folder, num_ray_workers=2, overwrite=True, progress=False)
    with pytest.raises(ValueError, match="name both a group and a speaker"):
        index_folder(folder, speaker_level=0, speaker_pattern="(?P<group>p.)", overwrite=True)
    with pytest.raises(ValueError, match="name both a subject and a user as group of signals"):
        index_folder(folder, speaker_pattern=r"(?P<subject>p.)/(?P<user>\d)", overwrite=True)
    (tmp_path / "none").mkdir()
    refuses(r"no audio below .*; signals: \.csv", index_folder, tmp_path / "none")
