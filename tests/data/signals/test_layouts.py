"""Wrong layouts, rates, channels and values, each named in one error; and right ones that look wrong."""

import dataclasses
import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refuses

from cpc.data.recordings.windows import PackedRecordings
from cpc.data.signals.pack import pack_signals
from cpc.data.signals.recordings import read_recordings

RNG = np.random.default_rng(0)


def write(path: Path, **arrays: Any) -> Path:
    np.savez(path, **{name: np.asarray(array) for name, array in arrays.items()})
    return path


def read(path: Path, **options: Any) -> list[np.ndarray]:
    recordings = read_recordings(path, **{"sample_rate_hz": 50, **options})
    return [np.concatenate(list(recordings.read(row))) for row in range(len(recordings))]


X = RNG.normal(size=(4, 30, 3)).astype(np.float32)


def test_layouts_of_npz(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    write(path, x=X, label=[3, 0, -1, 3], user=["a", "b", "a", "b"], split=["dev", "train", "train", "Test"])
    recordings = read_recordings(path, sample_rate_hz=50)
    assert recordings.names == [f"recording {row}" for row in range(4)]
    assert recordings.splits == ["valid", "train", "train", "test"]
    assert recordings.groups == ["a", "b", "a", "b"]
    assert recordings.labels["label"].classes == ["0", "3"]
    assert [recordings.labels["label"].codes(row, 0, 1).item() for row in range(4)] == [1, 0, -1, 1]
    for own, expected in zip(read(path), X, strict=True):
        np.testing.assert_array_equal(own, expected)
    write(path, x=X, length=[30, 1, 2, 29], label=np.arange(120).reshape(4, 30) % 3, classes=["p", "q", "r"])
    assert [len(own) for own in read(path)] == [30, 1, 2, 29]
    np.testing.assert_array_equal(read(path)[3], X[3, :29])
    labels = read_recordings(path, sample_rate_hz=50).labels["label"]
    assert labels.classes == ["p", "q", "r"]
    assert labels.codes(2, 0, 3).tolist() == [0, 1, -1]  # two samples, then padding
    write(path, x=X.reshape(120, 3), length=[100, 19, 1], label=np.arange(120), channels=["x", "y", "z"])
    assert [len(own) for own in read(path)] == [100, 19, 1]
    np.testing.assert_array_equal(read(path, channels=["z", 0])[1], X.reshape(120, 3)[100:119][:, [2, 0]])
    assert read_recordings(path, sample_rate_hz=50).labels["label"].codes(1, 5, 2).tolist() == [105, 106]
    write(path, ecg=X[0, :, 0], sample_rate_hz=12.5)
    refuses(r"has no array 'x', only ecg, sample_rate_hz", read_recordings, path)
    write(path, x=X[0, :, 0], sample_rate_hz=12.5)
    recordings = read_recordings(path)
    assert (recordings.names, recordings.sample_rate_hz) == (["a.npz"], 12.5)
    np.testing.assert_array_equal(read(path, sample_rate_hz=None)[0][:, 0], X[0, :, 0])
    refuses(r"a.npz says 12.5 Hz, but `sample_rate_hz` is 50: leave the option out", read, path)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X.swapaxes(1, 2)}, r"30 channels of 3 samples each look transposed"),
        ({"x": X.swapaxes(1, 2), "length": [30, 30, 30, 30]}, r"x seems to be \[n, C, T\], transpose it"),
        ({"x": X.reshape(120, 3), "length": [60, 61]}, r"lengths add up to 121 samples, but x has 120"),
        ({"x": X, "length": [30, 30]}, r"length has 2 entries of at most 30 samples, but x is \[n, T, C\]"),
        ({"x": X[:0]}, r"x is float32 \[0, 30, 3\], but must be real numbers"),
        ({"x": X, "user": [1, 2]}, r"user is int64 \[2\], but must be strings or whole numbers \[4\]"),
        ({"x": X, "channels": ["a"]}, r"channels is <U1 \[1\]"),
        ({"x": X, "sample_rate_hz": 0}, r"sample_rate_hz is 0, but must be one positive number"),
        ({"x": X, "label": [0, 1, 2, 3], "classes": ["a"]}, r"labels go up to 3, classes are a"),
    ],
)
def test_wrong_arrays(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        read(write(tmp_path / "a.npz", **arrays))
    assert "a.npz" in str(error.value)


def test_arrays_that_are_no_labels_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.npz", x=X, age=[1.5, 2, 3, 4], sensor=["a", "b"])
    with pytest.warns(UserWarning, match=r"ignored the arrays age \(float64 \[4\]\), sensor \(<U1 \[2\]\)"):
        recordings = read_recordings(path, sample_rate_hz=50)
    assert recordings.labels == {}


def test_wide_recordings_are_read_if_all_channels_are_listed(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", X[0, :1])
    refuses(r"a.npy: 3 channels of 1 samples each look transposed", read, tmp_path / "a.npy")
    np.testing.assert_array_equal(read(tmp_path / "a.npy", channels=[0, 1, 2])[0], X[0, :1])
    np.save(tmp_path / "a.npy", X)
    np.testing.assert_array_equal(read(tmp_path / "a.npy")[3], X[3])
    refuses(r"a.npy holds 4 recordings; in a folder each file is one", read, tmp_path)


NO_RATE = {"sample_rate_hz": None}


def times(*parts: range) -> str:
    return "time,x\n" + "".join(f"{time},{time % 7}\n" for part in parts for time in part)


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        ({"a.csv": "x,y,z\n1,2,3\n"}, {}, r"a.csv: 3 channels of 1 samples each look transposed"),
        ({"a.csv": "x\n1\n2\nthree\n"}, {}, r"a.csv, line 4: the column 'x' holds 'three', no number"),
        ({"a.csv": "x\n1\n\n3\n"}, {}, r"a.csv: channel x is missing \(NaN\) at 0.02 s \(sample 1\)"),
        ({"a.csv": "x\n1\n2\n1e39\n"}, {}, r"channel x is infinite, or too large for float32 at 0.04 s \(sample 2\)"),
        ({"a.csv": "x\n"}, {}, r"a.csv: 1 channels of 0 samples|a.csv has no samples: remove it"),
        ({"a.csv": "0.5,-1\n1,2\n2,3\n"}, {}, r"a.csv, line 1: 0.5, -1 are values, no names of columns"),
        ({"a.csv": "0,1\n1,2\n2,3\n"}, {}, r"a.csv, line 1: 0, 1 may be names or the first sample"),
        ({"a.csv": "time\n1\n"}, {}, r"a.csv has no channels, only the columns time"),
        ({"a.csv": "x\n1\n", "b.csv": "y\n1\n"}, {}, r"a.csv has the channels x; b.csv has y; set `channels` to"),
        ({"a.csv": "x\n1\n"}, {"channels": ["y"]}, r"a.csv has no channel 'y', only x, or the numbers"),
        ({"a.csv": "x,y\n1,2\n1,2\n"}, {"channels": ["x", 0]}, r"`channels` are x, 0, but must name .* each once"),
        ({"a.csv": "t,x\n0,1\n1,2\n", "b.csv": "t,x\n0,1\n2,2\n"}, NO_RATE, r"a.csv has 1 Hz, b.csv 0.5 Hz; the rec"),
        ({"a.csv": "time,x\n0,1\n1,2\n2,3\n"}, {}, r"'time' has a step of 1, 1 Hz in units of 1 s, .* is 50"),
        ({"a.csv": times(range(51), range(52, 101))}, NO_RATE, r"'time' steps by 2 before sample 51, on .* by 1.01"),
        ({"a.csv": times(range(6001), range(6000, 9000))}, NO_RATE, r"'time' steps by 0 before sample 6001"),
        ({"a.csv": "time,x\nnoon,1\nnight,2\n"}, {}, r"a.csv: line 2 on: the column 'time' holds no times"),
        ({"a.csv": "x\n1\n", "manifest.csv": "path\nb.csv\n"}, {}, r"1 of the 1 files in .* are absent:\n  .*b.csv"),
        ({"a.csv": "x\n1\n", "manifest.csv": "path,offset\na.csv,3.5\n"}, {}, r"a.csv: offset is '3.5', but must be 0"),
        ({"a.csv": "x\n1\n", "labels.csv": "path,start,end,label\na.csv,2,1,k\n"}, {}, r"row 1: a.csv from '2' to '1'"),
        ({"a.csv": "x\n1\n", "a.tsv": "x\n1\n", "labels.csv": "path,start,end,label\na,1,2,k\n"}, {}, "of several rec"),
        ({"a.csv": "x\n1\n", "labels.csv": "path,start,end\n"}, {}, r"labels.csv has no column 'label', only path, st"),
        ({"a.csv": "x\n1\n"}, {"valid_share": 0.5}, r"too few, since train, valid"),
    ],
)
def test_wrong_folders(tmp_path: Path, files: dict[str, str], options: dict[str, Any], message: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    refuses(message, read, tmp_path, **options)


def test_a_manifest_may_name_files_in_another_normal_form(tmp_path: Path) -> None:
    (tmp_path / "a\u0308.csv").write_text("x\n1\n2\n")
    (tmp_path / "manifest.csv").write_text("path,mood\n\u00e4.csv,good\n", encoding="utf-8")
    assert [own.tolist() for own in read(tmp_path)] == [[[1], [2]]]


@pytest.mark.parametrize(
    ("header", "times", "rate", "expected"),
    [
        ("time", [0.0, 0.02, 0.04], None, 50),
        ("Time (ms)", [0, 4, 8], None, 250),
        ("timestamp_us", [0, 3906, 7812, 11719], None, 256),  # rounded
        ("timestamp", [1700000000000, 1700000000020, 1700000000040], None, 50),  # milliseconds since 1970
        ("time", [0, 20, 41, 60], 50, 50),  # milliseconds, by the rate
        ("datetime", ["2024-01-01 00:00:00Z", "2024-01-01 00:01:00Z"], None, 1 / 60),
        ("timestamp", ["2024-01-01T00:00:00.5+01:00", "2024-01-01T00:00:00.6+01:00"], None, 10),
        ("time", ["2024-10-27T02:59:59+02:00", "2024-10-27T02:00:00+01:00", "2024-10-27T01:00:01Z"], None, 1),
        ("time", ["2024-10-27 02:59:59.0+02", "2024-10-27 02:00:00 +01:00", "2024-10-27 01:00:01 Z"], None, 1),
        ("time", ["2021-03-28", "2021-03-29"], None, 1 / 86400),
        ("seconds_elapsed", [0.0, 0.02, 0.04], None, 50),
    ],
)
def test_columns_of_time(tmp_path: Path, header: str, times: list[Any], rate: float | None, expected: float) -> None:
    (tmp_path / "a.csv").write_text(f"{header},x\n" + "".join(f"{time},1\n" for time in times))
    recordings = read_recordings(tmp_path, sample_rate_hz=rate)
    assert recordings.channels == ["x"]
    assert recordings.sample_rate_hz == pytest.approx(expected, rel=1e-5)
    assert len(next(recordings.read(0))) == len(times)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_times_and_counters_are_no_channels(tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A column that `channels` names is one."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    rows = np.arange(160)
    columns = {
        "Unnamed: 0": rows,
        "timestamp_ms": 1_700_000_000_000 + np.rint(rows * 1000 / 60).astype(int),
        "seconds_elapsed": rows / 60,
        "packet": 7 + 3 * rows,
        "x": RNG.normal(size=160),
        "clock": np.round(rows / 60, 3),
        "tesla": 1e-13 * np.sort(RNG.normal(size=160)),
        "steps": np.cumsum(RNG.integers(0, 2, 160)),
    }
    frame = pandas.DataFrame(columns)
    frame.to_csv(tmp_path / "a.csv", index=False) if suffix == "csv" else frame.to_parquet(tmp_path / "a.parquet")
    recordings = read_recordings(tmp_path, sample_rate_hz=60)
    assert recordings.channels == ["x", "tesla", "steps"]
    assert "the columns Unnamed: 0, clock, packet, seconds_elapsed are times or counters" in capsys.readouterr().err
    np.testing.assert_array_equal(read(tmp_path, sample_rate_hz=60)[0][:, 0], columns["x"].astype(np.float32))
    for channels in (["x", "packet"], ["index", "clock"], ["timestamp_ms"]):
        frame = frame.rename(columns={"Unnamed: 0": "index"})
        frame.to_csv(tmp_path / "a.csv", index=False) if suffix == "csv" else frame.to_parquet(tmp_path / "a.parquet")
        expected = frame[channels].to_numpy(np.float32)
        np.testing.assert_array_equal(read(tmp_path, sample_rate_hz=60, channels=channels)[0], expected)
    assert read_recordings(tmp_path, sample_rate_hz=60, channels=[2, 3]).channels == ["packet", "x"]
    temperature = {"time": rows / 60, "T": 20 + np.sin(rows), "middle": columns["x"], "index": columns["x"]}
    write = {"csv": pandas.DataFrame.to_csv, "parquet": pandas.DataFrame.to_parquet}[suffix]
    write(pandas.DataFrame(temperature), tmp_path / f"a.{suffix}", index=False)
    assert read_recordings(tmp_path).channels == ["T", "middle", "index"]


def test_a_folder_has_one_set_of_counters(tmp_path: Path) -> None:
    """Short files that rise by a constant have channels; so does one that rises only in a part of the long files."""
    for name, num in (("a", 12), ("b", 150), ("c", 150)):
        rows = np.arange(num)
        ramp = 20 + rows / 10 if name != "c" else RNG.normal(size=num)
        lines = [f"{row},{x},{y},{z}" for row, x, y, z in zip(rows, ramp, 2 * rows, RNG.normal(size=num), strict=True)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["seconds,ramp,packet,x", *lines, ""]))
    assert read_recordings(tmp_path).channels == ["ramp", "x"]
    assert read_recordings(tmp_path / "a.csv").channels == ["ramp", "packet", "x"]
    assert read_recordings(tmp_path / "b.csv").channels == ["x"]


def test_missing_samples_are_masked(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n,4\n\ninf,NA\n9,10\n")
    expected = [[1, 2], [np.nan, 4], [np.nan, np.nan], [np.nan, np.nan], [9, 10]]
    recordings = read_recordings(tmp_path, sample_rate_hz=1, missing="mask")
    packed = pack_signals(recordings, progress=False)
    np.testing.assert_array_equal(packed.read(0, 0, 9), expected)
    refused = read_recordings(tmp_path, sample_rate_hz=1)
    with pytest.raises(ValueError, match=r"1 of 1 recordings cannot be used:\n.*channel x is missing"):
        pack_signals(refused, progress=False)  # not the pack of the masked recordings


def test_bad_recordings_are_skipped(tmp_path: Path) -> None:
    for name, values in (("a", X[0]), ("b", np.full((5, 3), np.nan)), ("c", X[1])):
        np.save(tmp_path / f"{name}.npy", values)
    recordings = read_recordings(tmp_path, sample_rate_hz=1)
    with pytest.warns(UserWarning, match=r"1 of 3 recordings cannot be used:\n.*b.npy: channel 0 is missing"):
        packed = pack_signals(recordings, skip_bad=True, progress=False)
    assert packed.lengths.tolist() == [30, 0, 30]
    assert list(packed.skipped) == [1]


def test_a_pack_depends_on_the_content_alone(tmp_path: Path) -> None:
    def packed(name: str, values: np.ndarray, block: int) -> PackedRecordings:
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "a.npy", values)
        recordings = read_recordings(tmp_path / name, sample_rate_hz=1)
        recordings = dataclasses.replace(recordings, read_blocks=in_blocks(recordings.read_blocks, block))
        return pack_signals(recordings, progress=False)

    values = RNG.normal(size=(1000, 2)).astype(np.float32)
    changed_values = np.add(values, [0, 1e-6], dtype=np.float32)
    first, same, other = packed("a", values, 1000), packed("b", values, 7), packed("c", changed_values, 1000)
    np.testing.assert_array_equal(first.content([0]), same.content([0]))
    changed = first.content([0]) != other.content([0])
    assert changed.ravel().tolist() == [False, False, True, False, True]  # length; sums, and sums of squares
    bits = [[int(pattern) for pattern in channel.view(np.uint32)] for channel in values.T.copy()]
    sums = [sum(channel) for channel in bits] + [sum(bit * bit for bit in channel) for channel in bits]
    assert first.content([0]).astype(np.uint64).tolist() == [[1000, *(total % 2**64 for total in sums)]]


def in_blocks(read: Callable[..., Iterator[np.ndarray]], size: int) -> Callable[..., Iterator[np.ndarray]]:
    """Return a reader whose blocks have another size."""

    def read_blocks(row: int, columns: Sequence[int]) -> Iterator[np.ndarray]:
        whole = np.concatenate(list(read(row, columns)))
        return (whole[start : start + size] for start in range(0, len(whole), size))

    return read_blocks


def test_a_pack_is_reused_until_source_or_options_change(tmp_path: Path) -> None:
    path = write(tmp_path / "a.npz", x=X, label=[0, 1, 2, 3])
    folders = set()
    for options in ({}, {}, {"channels": [1]}, {"sample_rate_hz": 25}, {"missing": "mask"}):
        folders.add(pack_signals(read_recordings(path, **{"sample_rate_hz": 50, **options}), progress=False).folder)
    assert len(folders) == 4
    write(path, x=2 * X)
    again = pack_signals(read_recordings(path, sample_rate_hz=50), progress=False)
    assert again.folder not in folders
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(again)).read(3, 0, 30), 2 * X[3])


def test_constant_channels_and_other_scales_are_named(tmp_path: Path) -> None:
    walk = RNG.integers(-100, 100, (50, 3))
    for name, values in (("a", walk), ("b", walk + 1), ("c", 0.001 * walk)):
        np.save(tmp_path / f"{name}.npy", values)
    with pytest.warns(UserWarning, match=r"the values of .*[ab].npy span 1e\+03 times the range of .*c.npy"):
        pack_signals(read_recordings(tmp_path, sample_rate_hz=1), progress=False)
    np.save(tmp_path / "c.npy", walk * [1, 0, 1])
    with pytest.warns(UserWarning, match=r"channels are constant:\n  1, in 1 of 3 recordings, such as .*c.npy"):
        pack_signals(read_recordings(tmp_path, sample_rate_hz=1), progress=False)


def test_splits_are_drawn_by_group_from_train(tmp_path: Path) -> None:
    x = RNG.normal(size=(60, 4, 1))
    users = np.arange(60) // 3
    path = write(tmp_path / "a.npz", x=x, user=users, split=["train"] * 45 + ["test"] * 15)
    recordings = read_recordings(path, sample_rate_hz=1, valid_share=0.3, test_share=0.5)
    assert recordings.splits[45:] == ["test"] * 15
    assert set(recordings.splits[:45]) == {"train", "valid"}
    splits_of = [{recordings.splits[row] for row in np.flatnonzero(users == user)} for user in range(20)]
    assert all(len(splits) == 1 for splits in splits_of)
    again = read_recordings(path, sample_rate_hz=1, valid_share=0.3, seed=1)
    assert again.splits != recordings.splits
