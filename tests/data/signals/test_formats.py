"""Files that are written with the library of their format, or with another one than the reader's."""

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from refusals import refuses

from cpc.data.signals.pack import pack_signals
from cpc.data.signals.recordings import Recordings, read_recordings

RNG = np.random.default_rng(0)


def decode(recordings: Recordings, row: int = 0) -> np.ndarray:
    return np.concatenate(list(pickle.loads(pickle.dumps(recordings)).read(row)))


def test_parquet(tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    start = np.datetime64("2024-03-01T12:00:00", "us")
    counts = RNG.integers(-1000, 1000, 100_000)
    volts = RNG.normal(size=100_000)
    columns = {
        "timestamp": pa.array(start + np.arange(100_000) * np.timedelta64(4000, "us")),
        "counts": pa.array(counts, pa.int16()),
        "volts": pa.array(volts),
        "label": pa.array([None if index % 3 else "beat" for index in range(100_000)]),
    }
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=30_000)
    recordings = read_recordings(tmp_path / "a.parquet")
    assert recordings.names == ["a.parquet"]
    assert recordings.channels == ["counts", "volts"]
    assert recordings.sample_rate_hz == 250
    np.testing.assert_array_equal(decode(recordings), np.stack([counts, volts], axis=1).astype(np.float32))
    assert recordings.labels["label"].codes(0, 2, 5).tolist() == [-1, 0, -1, -1, 0]
    assert decode(read_recordings(tmp_path, channels=["volts"])).shape == (100_000, 1)
    parquet.write_table(pa.table({"x": pa.array([1.0, None, 3.0]), "y": ["a", "b", "c"]}), tmp_path / "a.parquet")
    refuses(r"a.parquet, line 1: .* 'y' holds string, no number", decode, read_recordings(tmp_path, sample_rate_hz=1))
    masked = decode(read_recordings(tmp_path, sample_rate_hz=1, channels=["x"], missing="mask"))
    np.testing.assert_array_equal(masked[:, 0], [1, np.nan, 3])


@pytest.mark.parametrize("suffix", ["edf", "bdf"])
def test_edf_and_bdf(tmp_path: Path, suffix: str) -> None:
    edfio = pytest.importorskip("edfio")
    file_class, signal_class = {"edf": (edfio.Edf, edfio.EdfSignal), "bdf": (edfio.Bdf, edfio.BdfSignal)}[suffix]
    values = {"Fp1": RNG.normal(size=256 * 300), "Cz": 50 * RNG.normal(size=256 * 300), "Temp": RNG.normal(size=300)}
    signals = [signal_class(each, 1 if name == "Temp" else 256, label=name) for name, each in values.items()]
    notes = [edfio.EdfAnnotation(10, 2.5, "seizure"), edfio.EdfAnnotation(20.001, None, "blink")]
    path = tmp_path / f"night.{suffix}"
    file_class(signals, annotations=notes).write(path)
    refuses(r"different rates: Fp1 256 Hz, Cz 256 Hz, Temp 1 Hz; choose", read_recordings, path)
    refuses(r"has no channel 'Pz', only Fp1, Cz, Temp", read_recordings, path, channels=["Pz"])
    recordings = read_recordings(tmp_path, channels=["Cz", "Fp1"])
    assert recordings.sample_rate_hz == 256
    packed = pack_signals(recordings, progress=False)
    for column, name in enumerate(["Cz", "Fp1"]):  # a step of the converter of 16 or 24 bits
        step = np.ptp(values[name]) / (65535 if suffix == "edf" else 2**24 - 1)
        own = packed.read(0, 0, 10**9)[:, column]
        np.testing.assert_allclose(own, values[name], atol=0.6 * step, rtol=1e-6)
    labels = recordings.labels["annotation"]
    assert labels.classes == ["blink", "seizure"]
    codes = labels.codes(0, 0, 256 * 300)
    assert np.flatnonzero(codes == 1).tolist() == list(range(2560, 3200))
    assert np.flatnonzero(codes == 0).tolist() == [5120]


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # pandas 3.1 about wfdb 4.3, which writes the record
def test_wfdb(tmp_path: Path) -> None:
    wfdb = pytest.importorskip("wfdb")
    values = RNG.normal(size=(70_000, 2))
    wfdb.wrsamp("p1", 360, ["mV", "uV"], ["MLII", "V5"], p_signal=values, fmt=["212", "212"], write_dir=str(tmp_path))
    symbols, samples = ["+", "N", "(", "p", ")", "V", "+"], [5, 7, 20, 25, 30, 400, 36_000]
    notes = ["(N", "", "", "", "", "", "(AFIB"]
    wfdb.wrann("p1", "atr", np.array(samples), symbols, aux_note=notes, write_dir=str(tmp_path))
    (tmp_path / "p1.notes").write_text("no annotations, but words of a person")
    recordings = read_recordings(tmp_path)
    assert recordings.names == ["p1.hea"]
    assert recordings.channels == ["MLII", "V5"]
    assert recordings.sample_rate_hz == 360
    np.testing.assert_allclose(decode(recordings), values, atol=0.002)  # 12 bits of a range of about 8
    assert sorted(recordings.labels) == ["atr", "atr_rhythm"]
    beats = recordings.labels["atr"]
    assert beats.classes == ["N", "V", "p"]
    expected = np.full(70_000, -1)
    expected[7], expected[20:30], expected[400] = 0, 2, 1
    np.testing.assert_array_equal(beats.codes(0, 0, 70_000), expected)
    rhythm = recordings.labels["atr_rhythm"]
    assert rhythm.classes == ["AFIB", "N"]
    expected = np.full(70_000, -1)
    expected[5:36_000], expected[36_000:] = 1, 0
    np.testing.assert_array_equal(rhythm.codes(0, 0, 70_000), expected)
    (tmp_path / "p1.dat").unlink()
    refuses(r"p1.hea names the signals .*p1.dat, which are absent", read_recordings, tmp_path)


def edf_with(path: Path, field: str, text: str, channel: int = 1) -> Path:
    """Write an EDF or BDF file of the channels A and B with another text in a field of its header."""
    edfio = pytest.importorskip("edfio")
    file_class, signal_class = {".edf": (edfio.Edf, edfio.EdfSignal), ".bdf": (edfio.Bdf, edfio.BdfSignal)}[path.suffix]
    values = np.random.default_rng(0).uniform(-300, 300, (2, 600))
    limits = (-327.6, 327.5)
    signals = [signal_class(values[i], 20, label=name, physical_range=limits) for i, name in enumerate("AB")]
    file_class(signals, data_record_duration=0.5).write(path)
    numbers = ("unit", "physical_min", "physical_max", "digital_min", "digital_max")
    widths = {"label": 16, "transducer": 80, **dict.fromkeys(numbers, 8)}
    if field in widths:
        before = list(widths.values())[: list(widths).index(field)]
        first, width = 256 + 2 * sum(before) + channel * widths[field], widths[field]
    else:
        first, width = {"size": (184, 8), "records": (236, 8), "duration": (244, 8)}[field]
    content = path.read_bytes()
    path.write_bytes(content[:first] + text.ljust(width).encode() + content[first + width :])
    return path


@pytest.mark.parametrize("suffix", ["edf", "bdf"])
def test_decimal_commas_and_fields_without_a_number(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    right = decode(read_recordings(edf_with(path, "physical_min", "-327.6")))
    for field, text in (("physical_min", "-327,6"), ("physical_max", "327,5")):
        np.testing.assert_array_equal(decode(read_recordings(edf_with(path, field, text))), right)
    for field, text, message in (
        ("digital_max", "", r"digital_max of channel B is '', not a finite number: correct the"),
        ("physical_max", "high", r"physical_max of channel B is 'high'"),
        ("physical_max", "-327,6", r"physical_min and physical_max of channel B are both -327.6"),
        ("duration", "0,5", r"the duration of a record is '0,5', no number"),
        ("size", "512", r"the header says that it has 512 bytes and 2 signals"),
    ):
        refuses(rf"a.{suffix}: {message}", read_recordings, edf_with(path, field, text))
    edf_with(path, "digital_max", "")
    np.testing.assert_array_equal(decode(read_recordings(path, channels=["A"])), right[:, :1])  # as the advice says
    edf_with(path, "records", "-1")  # while it is recorded
    with pytest.warns(UserWarning, match="header indicates -1 data records, but file contains 60"):
        np.testing.assert_array_equal(decode(read_recordings(path)), right)


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # pandas 3.1 about wfdb 4.3, which writes the annotations
def test_wfdb_with_several_samples_per_frame(tmp_path: Path) -> None:
    wfdb = pytest.importorskip("wfdb")
    num_frames = 30_000
    fast, slow = RNG.integers(-999, 999, (2, num_frames, 3)), RNG.integers(-999, 999, (num_frames, 1))
    np.concatenate([*fast, slow], axis=1).astype("<i2").tofile(tmp_path / "p.dat")
    signals = ["16x3 200 16 0 0 0 0 I", "16x3 100 16 0 0 0 0 II", "16 50 16 0 0 0 0 BP"]
    (tmp_path / "p.hea").write_text("\n".join(["p 3 100 30000", *(f"p.dat {each}" for each in signals), ""]))
    wfdb.wrann("p", "qrs", np.array([0, 100, 29_999]), ["N"] * 3, write_dir=str(tmp_path))
    refuses(r"p.hea: .* different rates: I 300 Hz, II 300 Hz, BP 100 Hz", read_recordings, tmp_path)
    recordings = read_recordings(tmp_path, channels=["II", "I"])
    assert recordings.sample_rate_hz == 300
    expected = np.stack([fast[1].ravel() / 100, fast[0].ravel() / 200], axis=1)
    np.testing.assert_allclose(decode(recordings), expected, atol=1e-6)
    assert np.flatnonzero(recordings.labels["qrs"].codes(0, 0, 90_000) == 0).tolist() == [0, 300, 89_997]
    np.testing.assert_allclose(decode(read_recordings(tmp_path, channels=["BP"])), slow / 50, atol=1e-6)
    wfdb.wrann("p", "qrs", np.array([0, 9]), ['"', "N"], aux_note=["## by hand", ""], write_dir=str(tmp_path))
    with pytest.raises(ValueError, match=r"p.qrs: cannot .* note that begins with '## ' and defines nothing"):
        read_recordings(tmp_path, channels=["BP"])  # wfdb would hang


@pytest.mark.parametrize("name", ["a.ts", "a.mat"])
def test_an_unknown_format_names_the_known_ones(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("@problemName P\n@data\n1,2,3:a\n")
    refuses(rf"{name} is of no known format: known are", read_recordings, tmp_path / name, sample_rate_hz=1)
    refuses(r"no signal below .*suffix: .bdf .csv", read_recordings, tmp_path, sample_rate_hz=1)


@pytest.mark.parametrize(("file", "package"), [("a.parquet", "pyarrow"), ("a.edf", "edfio"), ("a.hea", "wfdb")])
def test_a_missing_package_is_named(tmp_path: Path, file: str, package: str) -> None:
    (tmp_path / file).write_bytes(b"anything")
    script = (
        f"import sys; sys.modules[{package!r}] = None\n"
        f"from cpc.data.signals.recordings import read_recordings\nread_recordings({str(tmp_path / file)!r})"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert f"`{package}`: install it with `uv sync --extra signals`" in result.stderr.splitlines()[-1], result.stderr
