"""datasets/{hapt,watch,ludb,uea}/prepare.py on small trees of the published layouts, and on real ones beside them."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from shared_data import Prepare, real

from cpc.data.signals.recordings import Recordings, read_recordings

RNG = np.random.default_rng(0)


def samples(recordings: Recordings, row: int) -> np.ndarray:
    return np.concatenate(list(recordings.read(row)))


def codes(recordings: Recordings, row: int, num_samples: int) -> list[int]:
    return recordings.labels["label"].codes(row, 0, num_samples).tolist()


@pytest.fixture
def hapt(tmp_path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """Two experiments of person 1, and one of person 2, who is in the test part."""
    raw = tmp_path / "hapt" / "RawData"
    raw.mkdir(parents=True)
    written = {}
    for experiment, user, num_samples in ((1, 1, 40), (2, 1, 30), (3, 2, 25)):
        for sensor in ("acc", "gyro"):
            values = RNG.normal(size=(num_samples, 3)).round(6)
            name = f"{sensor}_exp{experiment:02}_user{user:02}.txt"
            np.savetxt(raw / name, values)
            written[name] = values
    (raw / "labels.txt").write_text("1 1 5 3 10\n1 1 7 11 12\n2 1 1 1 30\n3 2 12 20 25\n")
    return raw.parent, written


def test_hapt(prepare: Prepare, hapt: tuple[Path, dict[str, np.ndarray]], tmp_path: Path) -> None:
    root, written = hapt
    for source in (root, root / "RawData"):  # the same without RawData
        printed = prepare("hapt", source, "--out", tmp_path / "hapt.npz")
        recordings = read_recordings(tmp_path / "hapt.npz")
        assert (recordings.groups, recordings.splits) == (["1", "1", "2"], ["train", "train", "test"])
        assert recordings.channels == ["acc_x", "acc_y", "acc_z", "gyro_x", "gyro_y", "gyro_z"]
        assert recordings.sample_rate_hz == 50
        expected = np.concatenate([written["acc_exp02_user01.txt"], written["gyro_exp02_user01.txt"]], 1)
        np.testing.assert_array_equal(samples(recordings, 1), expected.astype(np.float32))
        # Samples count from 1, and the last one belongs to the activity.
        assert codes(recordings, 0, 40) == [-1] * 2 + [4] * 8 + [6] * 2 + [-1] * 28
        assert codes(recordings, 1, 30) == [0] * 30
        assert codes(recordings, 2, 25) == [-1] * 19 + [11] * 6
        classes = recordings.labels["label"].classes
        assert [classes[code] for code in (4, 6, 11)] == ["standing", "stand to sit", "lie to stand"]
    assert "3 recordings of 6 channels" in printed


def test_hapt_refusals(prepare: Prepare, hapt: tuple[Path, dict[str, np.ndarray]]) -> None:
    root, _ = hapt
    labels = root / "RawData" / "labels.txt"
    for line in ("1 1 13 3 10", "1 1 5 0 10", "1 1 5 3 41"):
        labels.write_text(line + "\n")
        prepare("hapt", root, refused=r"experiment 1 has activity .*has 40 samples, and activities are 1 to 12")
    labels.write_text("1 1 5 3 10\n")
    (root / "RawData" / "gyro_exp03_user02.txt").write_text("1 2\n")
    prepare("hapt", root, refused=r"gyro_exp03_user02.txt has 2 columns, but must have 3")
    labels.unlink()
    prepare("hapt", root, refused=r"has neither hapt.npz nor the published files")
    assert not list(root.glob("*.npz"))


@pytest.mark.parametrize("is_installed", [False, True])
def test_watch(prepare: Prepare, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_installed: bool) -> None:
    lengths = [12, 20, 15]
    signals = [RNG.normal(size=(num_samples, 6)).astype(np.float32) for num_samples in lengths]
    about = {"subject": np.array([4, 4, 9]), "side": np.array([1, 0, 1])}
    labels, data = np.array([0, 6, 3]), tmp_path / "seglearn" / "data"
    if is_installed:
        data.mkdir(parents=True)
        (data.parent / "__init__.py").touch()
        np.save(data / "watch_dataset.npy", np.array({"X": signals, "y": labels, **about}), allow_pickle=True)
        monkeypatch.syspath_prepend(tmp_path)
    else:
        np.savez(tmp_path / "watch.npz", x=np.concatenate(signals), length=lengths, label=labels, **about)
    printed = prepare("watch", tmp_path, "--out", tmp_path / "out.npz")
    recordings = read_recordings(tmp_path / "out.npz")
    assert recordings.groups == ["4", "4", "9"]
    assert recordings.sample_rate_hz == 50
    classes = [recordings.labels["label"].classes[codes(recordings, row, 1)[0]] for row in range(3)]
    assert classes == ["PEN", "ROW", "IR"]
    sides = recordings.labels["side"]
    assert [sides.classes[sides.codes(row, 0, 1)[0]] for row in range(3)] == ["right", "left", "right"]
    np.testing.assert_array_equal(samples(recordings, 1), signals[1])
    assert "(published: 140)" in printed


LEADS = ["i", "ii", "iii", "avr", "avl", "avf", "v1", "v2", "v3", "v4", "v5", "v6"]


@pytest.fixture
def ludb(tmp_path: Path) -> tuple[Path, dict[int, np.ndarray]]:
    """Subjects 4, 5 and 6, with marks of lead ii."""
    wfdb = pytest.importorskip("wfdb")
    folder = tmp_path / "ludb" / "data"
    folder.mkdir(parents=True)
    written = {}
    for subject in (4, 5, 6):
        values = RNG.integers(-900, 900, size=(300, 12))
        options = {"fmt": ["16"] * 12, "adc_gain": [1000.0] * 12, "baseline": [0] * 12, "write_dir": str(folder)}
        notes = ["<age>: 51", f"<sex>: {'M' if subject % 2 else 'F'}", "<diagnoses>:", "Rhythm: Sinus bradycardia."]
        wfdb.wrsamp(str(subject), 500, ["mV"] * 12, LEADS, d_signal=values, comments=notes, **options)
        marks = [(10, "("), (15, "p"), (20, ")"), (30, "("), (33, "N"), (40, ")"), (50, "("), (70, ")"), (90, "(")]
        marks += [(95, "t"), (99, ")")]
        places, symbols = zip(*marks, strict=True)
        wfdb.wrann(str(subject), "ii", np.array(places), list(symbols), write_dir=str(folder))
        written[subject] = values
    return folder.parent, written


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # pandas 3.1 about wfdb 4.3, which writes the record
def test_ludb(prepare: Prepare, ludb: tuple[Path, dict[int, np.ndarray]]) -> None:
    root, written = ludb
    printed = prepare("ludb", root)
    recordings = read_recordings(root / "ludb_recordings.npz")
    assert (recordings.groups, recordings.splits) == (["4", "5", "6"], ["valid", "test", "train"])
    assert recordings.channels == LEADS
    assert recordings.sample_rate_hz == 500
    np.testing.assert_array_equal(samples(recordings, 2), written[6])
    # From the first mark to the last; the wave without a peak counts as none.
    waves = [-1] * 10 + [1] * 11 + [0] * 9 + [2] * 11 + [0] * 49 + [3] * 10 + [-1] * 200
    assert codes(recordings, 0, 300) == waves
    assert recordings.labels["label"].classes == ["none", "P", "QRS", "T"]
    sex, rhythm = (recordings.labels[task] for task in ("sex", "rhythm"))
    assert [sex.classes[sex.codes(row, 0, 1)[0]] for row in range(3)] == ["F", "M", "F"]
    assert rhythm.classes == ["Sinus bradycardia"]
    assert "3 recordings of 12 channels" in printed


@pytest.mark.filterwarnings("ignore:The inplace keyword")
def test_ludb_at_another_rate(prepare: Prepare, ludb: tuple[Path, dict[int, np.ndarray]]) -> None:
    """The same signals at three quarters of the rate; each sample has the label of the nearest one."""
    root, _ = ludb
    prepare("ludb", root)
    prepare("ludb", root, "--out", str(root / "slow.npz"), "--rate_hz", "375")
    before, after = (np.load(root / name) for name in ("ludb_recordings.npz", "slow.npz"))
    assert float(after["sample_rate_hz"]) == 375
    assert after["length"].tolist() == [-(-3 * length // 4) for length in before["length"].tolist()]
    first = slice(0, int(after["length"][0]))
    nearest = np.rint(np.arange(first.stop) * 4 / 3).astype(int).clip(max=int(before["length"][0]) - 1)
    assert np.array_equal(after["label"][first], before["label"][nearest])
    # What is far below both rates is the same, except near the ends.
    spectra = [np.fft.rfft(each["x"][: each["length"][0]], axis=0)[:30] / each["length"][0] for each in (before, after)]
    assert np.abs(spectra[1] - spectra[0]).mean() < 0.1 * np.abs(spectra[0]).mean()
    prepare("ludb", root, "--rate_hz", "0", refused=r"(`rate_hz`|--rate_hz) is 0")


@pytest.mark.filterwarnings("ignore:The inplace keyword")
def test_ludb_refusals(prepare: Prepare, ludb: tuple[Path, dict[int, np.ndarray]]) -> None:
    root, _ = ludb
    prepare("ludb", root, "--lead", "v7", refused=r"(`lead`|--lead) is 'v7'")
    prepare("ludb", root, "--lead", "v1", refused=r"4: header, signal or marks of lead v1 cannot be read")
    header = root / "data" / "4.hea"
    header.write_text(header.read_text().replace(" avr\n", " AVR\n"))
    prepare("ludb", root, refused=r"4.hea has the leads i, ii, iii, AVR")
    prepare("ludb", root.parent, refused=r"has neither ludb.npz nor PhysioNet's files")


def write_ts(path: Path, values: np.ndarray, labels: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    about = "@problemName P\n@timeStamps false\n@univariate false\n@equalLength true\n@classLabel true up down\n@data\n"
    cases = [
        ":".join([*(",".join(map(str, channel)) for channel in case), label])
        for case, label in zip(values, labels, strict=True)
    ]
    path.write_text(about + "\n".join(cases) + "\n")


@pytest.fixture
def uea(tmp_path: Path) -> Path:
    root = tmp_path / "uea"
    for name in ("Waves", "Steps"):
        write_ts(root / name / f"{name}_TRAIN.ts", RNG.normal(size=(3, 2, 40)), ["up", "down", "up"])
        write_ts(root / name / f"{name}_TEST.ts", RNG.normal(size=(2, 2, 40)), ["down", "up"])
    packed = root / "Steps" / "Steps_TEST.ts"
    packed.with_suffix(".ts.gz").write_bytes(gzip.compress(packed.read_bytes()))
    packed.unlink()
    return root


def test_uea(prepare: Prepare, uea: Path, tmp_path: Path) -> None:
    train = RNG.normal(size=(3, 2, 40))
    write_ts(uea / "Steps" / "Steps_TRAIN.ts", train, ["up", "down", "up"])
    printed = prepare("uea", uea, "--out", tmp_path / "out")
    lines = [line.split() for line in printed.splitlines()[1:]]
    assert lines == [[name, "3", "2", "40", "2", "2"] for name in ("Steps", "Waves")]
    recordings = read_recordings(tmp_path / "out" / "Steps.npz", sample_rate_hz=10)
    assert recordings.splits == ["test"] * 2 + ["train"] * 3
    assert [recordings.labels["label"].classes[codes(recordings, row, 40)[0]] for row in (2, 3)] == ["up", "down"]
    np.testing.assert_array_equal(samples(recordings, 3), train[1].T.astype(np.float32))


def test_uea_refusals(prepare: Prepare, uea: Path, tmp_path: Path) -> None:
    prepare("uea", tmp_path / "none", refused=r"has no file like NAME_TRAIN.ts")
    write_ts(uea / "Waves" / "Waves_TEST.ts", RNG.normal(size=(2, 3, 40)), ["down", "up"])
    prepare("uea", uea, refused=r"Waves: the training part is .*must agree")
    path = uea / "Waves" / "Waves_TEST.ts"
    for data in ("1,2:3:up", "1,2:3,?:up", "(0,1),(1,2):(0,1),(1,2):up", "", "1,2:3,4:up\n1:3:up"):
        path.write_text(f"@data\n{data}\n")  # ragged, missing, with timestamps, empty
        prepare("uea", uea, refused=r"Waves_TEST.ts holds no recordings")
    path.unlink()
    prepare("uea", uea, refused=r"has no Waves_TEST.ts, but both parts belong together")
    write_ts(uea / "Waves" / "BasicMotions_TRAIN.ts", RNG.normal(size=(3, 2, 40)), ["up", "down", "up"])
    write_ts(uea / "Waves" / "BasicMotions_TEST.ts", RNG.normal(size=(3, 2, 40)), ["up", "down", "up"])
    (uea / "Waves" / "Waves_TRAIN.ts").unlink()
    prepare("uea", uea, refused=r"BasicMotions has 3 and 3 recordings, .*40, 40, 100, 6 are published")


@pytest.mark.parametrize(("corpus", "num"), [("hapt", 42), ("watch", 140), ("ludb", 150)])
def test_real_corpora(prepare: Prepare, corpus: str, num: int, tmp_path: Path) -> None:
    assert f"{num} recordings of" in prepare(corpus, real(corpus), "--out", tmp_path / "out.npz")
    assert len(read_recordings(tmp_path / "out.npz")) == num
