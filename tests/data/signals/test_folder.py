from pathlib import Path

import numpy as np
import pytest

from cpc.data.signals.pack import pack_signals
from cpc.data.signals.recordings import read_recordings

RNG = np.random.default_rng(0)
WALK = np.round(RNG.normal(size=(300, 2)), 6)
SIT = np.round(RNG.normal(size=(7000, 2)), 6)


def write_csv(path: Path, header: str, *columns: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [",".join(map(str, row)) for row in zip(*columns, strict=True)]
    path.write_text("\n".join([header, *rows]) + "\n")


def write_folder(root: Path) -> None:
    write_csv(root / "a" / "walk.csv", "time,left,right,label", np.arange(300) / 50, *WALK.T, ["up", "", "down"] * 100)
    write_csv(root / "sit.csv", "time,left,right", 5 + np.arange(7000) / 50, *SIT.T)


def test_manifest_labels_and_intervals(tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / "manifest.csv").write_text(
        "path,split,subject,activity\nsit.csv,Training,ann,sitting\na/walk.csv,dev,bob,\n"
    )
    (tmp_path / "labels.csv").write_text(
        "path,start,end,label\nsit.csv,1.0,2.0,cough\nsit.csv,1.5,1.6,sneeze\na/walk.csv,0,0,step\n"
    )
    recordings = read_recordings(tmp_path)
    assert recordings.names == ["sit.csv", "a/walk.csv"]
    assert recordings.splits == ["train", "valid"]
    assert recordings.groups == ["ann", "bob"]
    assert recordings.channels == ["left", "right"]
    assert recordings.sample_rate_hz == 50
    packed = pack_signals(recordings, num_workers=2, progress=False)
    assert packed.folder.parent == tmp_path / ".cpc_cache"
    assert packed.lengths.tolist() == [7000, 300]
    np.testing.assert_array_equal(packed.read(0, 0, 7000), SIT.astype(np.float32))
    np.testing.assert_array_equal(packed.read(1, 10, 5), WALK[10:15].astype(np.float32))
    activity = recordings.labels["activity"]
    assert activity.classes == ["sitting"]
    assert activity.codes(0, 0, 2).tolist() == [0, 0]
    assert activity.codes(1, 0, 1).tolist() == [-1]
    per_sample = recordings.labels["label"]
    assert per_sample.classes == ["down", "up"]
    assert per_sample.codes(1, 298, 4).tolist() == [-1, 0, -1, -1]
    assert per_sample.codes(0, 0, 1).tolist() == [-1]
    intervals = recordings.labels["interval"]
    assert intervals.classes == ["cough", "sneeze", "step"]
    expected = np.full(7000, -1)
    expected[50:100] = 0
    expected[75:80] = 1
    np.testing.assert_array_equal(intervals.codes(0, 0, 7000), expected)
    np.testing.assert_array_equal(intervals.codes(0, 77, 40), expected[77:117])
    assert intervals.codes(1, 0, 3).tolist() == [2, -1, -1]


@pytest.mark.parametrize("names", [("sit.csv", "walk.csv"), ("sit", "walk")], ids=["names", "stems"])
def test_intervals_name_recordings_as_labels_of_the_index_do(tmp_path: Path, names: tuple[str, str]) -> None:
    write_folder(tmp_path)
    (tmp_path / "labels.csv").write_text(f"path,start,end,label\n{names[0]},1,2,cough\n{names[1]},0,0,step\n")
    recordings = read_recordings(tmp_path)
    codes = {name: recordings.labels["interval"].codes(row, 0, 70) for row, name in enumerate(recordings.names)}
    assert codes["sit.csv"].tolist() == [-1] * 50 + [0] * 20
    assert codes["a/walk.csv"].tolist() == [1] + [-1] * 69


def test_a_folder_without_a_manifest_and_files_in_two_formats(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", "0,1", *WALK.T)
    np.save(tmp_path / "b.npy", SIT)
    with pytest.raises(ValueError, match="does not say its sample rate"):
        read_recordings(tmp_path)
    recordings = read_recordings(tmp_path, sample_rate_hz=12.5)
    assert recordings.names == ["a.csv", "b.npy"]
    assert recordings.splits == ["train", "train"]
    packed = pack_signals(recordings, progress=False)
    np.testing.assert_array_equal(packed.read(1, 0, 7000), SIT.astype(np.float32))
    chosen = read_recordings(tmp_path, sample_rate_hz=12.5, channels=["1"])
    np.testing.assert_array_equal(pack_signals(chosen, progress=False).read(0, 0, 300)[:, 0], WALK[:, 1].astype("f4"))
