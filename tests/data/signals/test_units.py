"""Units and names of channels: of the files of a source, and of a model that reads other people's files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from opened import opened
from refusals import refuses

import cpc
from cpc.data import Signals
from cpc.data.sharding import shard_corpus
from cpc.data.signals.channels import conversion
from cpc.data.signals.pack import pack_signals
from cpc.data.signals.recordings import read_recordings
from cpc.encoders import SignalEncoder
from cpc.pretraining.transfer import start_from
from cpc.probes.embed import embed

RATE_HZ = 20.0
NAMES = ("gyro_x", "gyro_y")
DEGREES = 180 / np.pi
rng = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("old", "new", "factor"),
    [
        ("nV", "uV", 1e-3),
        ("\N{MICRO SIGN}V", "\N{GREEK SMALL LETTER MU}V", 1),
        ("mg", "m/s^2", 9.80665e-3),
        ("m/s²", "g", 1 / 9.80665),
        ("°/s", "mrad/s", 1e3 / DEGREES),
        ("dps", "deg/s", 1),
        ("k\N{OHM SIGN}", "Ohm", 1e3),
        ("hPa ", "hPa", 1),
        ("", "T", 1),
        ("%", "", 1),
    ],
)
def test_factors(old: str, new: str, factor: float) -> None:
    assert conversion(old, new) == pytest.approx(factor, rel=1e-15)
    assert conversion(new, old) == pytest.approx(1 / factor, rel=1e-15)


@pytest.mark.parametrize(("old", "new"), [("uV", "uT"), ("degC", "K"), ("m", "m/s"), ("bpm", "Hz"), ("g", "G")])
def test_units_of_other_kinds(old: str, new: str) -> None:
    refuses(f"{old} cannot be converted to {new}", conversion, old, new)


def write_edf(path: Path, values: np.ndarray, units: tuple[str, str], names: tuple[str, str] = NAMES) -> None:
    edfio = pytest.importorskip("edfio")
    signals = [
        edfio.EdfSignal(column, RATE_HZ, label=name, physical_dimension=unit)
        for column, name, unit in zip(values.T, names, units, strict=True)
    ]
    edfio.Edf(signals).write(path)


def write_wfdb(folder: Path, name: str, values: np.ndarray, units: list[str], names: list[str]) -> None:
    wfdb = pytest.importorskip("wfdb")
    wfdb.wrsamp(name, RATE_HZ, units, names, p_signal=values, fmt=["16"] * len(names), write_dir=str(folder))


def samples(source: Path, **options: Any) -> list[np.ndarray]:
    recordings = read_recordings(source, **options)
    return [np.concatenate(list(recordings.read(row))) for row in range(len(recordings))]


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # pandas 3.1 about wfdb 4.3, which writes the record
def test_files_of_a_source_have_the_units_of_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An EDF file in deg/s, and a WFDB record in rad/s whose channels come in another order."""
    values = rng.normal(size=(400, 2))
    write_edf(tmp_path / "a.edf", values, ("deg/s", "deg/s"))
    write_wfdb(tmp_path, "b", values[:, ::-1] / DEGREES, ["rad/s", "rad/s"], [*NAMES[::-1]])
    recordings = read_recordings(tmp_path)
    assert (recordings.channels, recordings.units) == ([*NAMES], ["deg/s", "deg/s"])
    first, second = samples(tmp_path)
    np.testing.assert_allclose(first, values, atol=1e-3)
    np.testing.assert_allclose(second, values, atol=1e-3)
    Signals(source=str(tmp_path), valid_share=0.5).open(SignalEncoder(2, 4, RATE_HZ))
    assert "converted gyro_x from rad/s to deg/s (1 of 2 recordings), gyro_y from rad" in capsys.readouterr().err
    for other in samples(tmp_path, model_units=("mdeg/s", "deg/s")):
        np.testing.assert_allclose(other, values * (1000, 1), atol=1)
    read = [read_recordings(tmp_path, model_units=units) for units in (None, ["rad/s"] * 2)]
    packs = [pack_signals(recordings, progress=False) for recordings in read]
    np.testing.assert_allclose(packs[0].read(1), DEGREES * packs[1].read(1), rtol=1e-5)
    write_edf(tmp_path / "c.edf", values, ("deg/s", "g"))
    refuses(r"c\.edf has the channel gyro_y in g, but a\.edf has it in deg/s", read_recordings, tmp_path)
    with pytest.raises(ValueError, match=r"a\.edf has the channel gyro_x in deg/s, but the model reads it in mV"):
        read_recordings(tmp_path, channels=["gyro_x"], model_units=["mV"])


@pytest.mark.filterwarnings("ignore:The inplace keyword")
def test_channels_of_one_name_are_not_taken_for_each_other(tmp_path: Path) -> None:
    values = rng.normal(size=(100, 3))
    for name, names in (("a", ["ECG", "ECH", "resp"]), ("b", ["ECG", "ECH"])):
        write_wfdb(tmp_path, name, values[:, : len(names)], ["mV"] * len(names), names)
        header = tmp_path / f"{name}.hea"
        header.write_text(header.read_text().replace("ECH", "ECG"))
    refuses(r"b\.hea has several channels of one name: ECG, ECG", samples, tmp_path, channels=[0, 1])


def model_of(path: Path, names: tuple[str, ...] | None, units: tuple[str, ...] | None, channels: Any = None) -> cpc.CPC:
    torch.manual_seed(0)
    num = len(names or units or "xy")
    encoder = SignalEncoder(num, 4, RATE_HZ, channel_names=names, units=units)
    model = cpc.CPC(encoder, cpc.contexts.GRU(5), cpc.predictors.Bilinear(1))
    model.initialise_from(torch.randn(3, 200, num))
    data = Signals(source="unknown", channels=channels, window_seconds=5.0)
    cpc.save_pretrained(model, path, provenance={"data": data.saved_settings})
    return model.eval()


def test_a_model_reads_columns_by_name_in_its_order(tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    values = dict(zip("yzxw", rng.normal(size=(4, 100)).astype(np.float32), strict=True))
    parquet.write_table(pa.table(values), tmp_path / "a.parquet")
    model = model_of(tmp_path / "model", ("x", "y", "z"), None)
    expected = model.encode(torch.from_numpy(np.stack([values[name] for name in "xyz"], 1))[None])[1][0]
    embed(tmp_path / "model", [tmp_path / "a.parquet"], tmp_path / "out", progress=False)
    np.testing.assert_allclose(np.load(tmp_path / "out/a.npy"), expected.detach(), atol=1e-5)
    silent = Signals(source=str(tmp_path / "a.parquet"), valid_share=0.0)  # it says no rate
    assert silent.open(model.encoder).table.sample_rate_hz == RATE_HZ
    refuses("does not say its sample rate", silent.open, model.encoder, is_training=True)
    parquet.write_table(pa.table({"time": np.arange(100) / 25, **values}), tmp_path / "b.parquet")
    with pytest.raises(ValueError, match=r"has 25 samples per second, but `encoder.sample_rate_hz`=20"):
        Signals(source=str(tmp_path / "b.parquet"), valid_share=0.0).open(model.encoder)
    encoder, options = model.encoder, {"sample_rate_hz": RATE_HZ, "valid_share": 0.0}
    for channels in (None, ["z", "x", "y"]):  # the names of a run, in whatever order
        corpus = opened(Signals(source=str(tmp_path / "a.parquet"), channels=channels, **options), encoder)
        assert corpus.table.channels == ["x", "y", "z"]
        np.testing.assert_array_equal(corpus.samples.read(0)[:, 1], values["y"])
    message = r"a\.parquet has the channels y, z, x, w, but the model reads x, y, v, by these names"
    model_of(tmp_path / "other", ("x", "y", "v"), None)
    refuses(message, embed, tmp_path / "other", [tmp_path / "a.parquet"], tmp_path / "out2", progress=False)
    config = tmp_path / "other/config.json"
    config.write_text(config.read_text().replace('"v"', '"w"'))  # the advice of the message
    embed(tmp_path / "other", [tmp_path / "a.parquet"], tmp_path / "out2", progress=False)
    with pytest.raises(ValueError, match=r"by `channels`, the channels x, y, w, but the model reads x, y, z"):
        Signals(source=str(tmp_path / "a.parquet"), channels=[2, 0, 3], **options).open(encoder)
    np.save(tmp_path / "nameless.npy", np.stack([values[name] for name in "xyz"], 1))
    embed(tmp_path / "model", [tmp_path / "nameless.npy"], tmp_path / "out", progress=False)
    np.testing.assert_allclose(np.load(tmp_path / "out/nameless.npy"), expected.detach(), atol=1e-5)
    np.save(tmp_path / "nameless.npy", np.stack([values[name] for name in "xyzw"], 1))
    for names, reads in ((("x", "y", "z"), "x, y, z, by these names"), (None, "3: set")):
        encoder = SignalEncoder(3, 4, RATE_HZ, channel_names=names, units=["uV"] * 3)
        with pytest.raises(ValueError, match=f"nameless.npy has the channels 0, 1, 2, 3, but the model reads {reads}"):
            Signals(source=str(tmp_path / "nameless.npy"), **options).open(encoder)


@pytest.mark.filterwarnings("ignore:The inplace keyword")
def test_shipped_models_read_other_peoples_leads(tmp_path: Path) -> None:
    """Leads II, I, ... in mV, as WFDB records have them, equal the model's i, ii, ... in microvolts."""
    model = cpc.load_pretrained("ecg-small")
    names = [name.upper() for name in model.encoder.channel_names]
    values = np.round(100 * rng.normal(size=(400, 12)))
    expected = model.encode(torch.from_numpy(values)[None].float())[1][0]
    order = [1, 0, *range(2, 12)]
    wfdb = pytest.importorskip("wfdb")
    wfdb.wrsamp(
        "p", 500, ["mV"] * 12, [names[place] for place in order], d_signal=values[:, order].astype(np.int64),
        fmt=["16"] * 12, adc_gain=[1000.0] * 12, baseline=[0] * 12, write_dir=str(tmp_path),
    )  # fmt: skip
    embed("ecg-small", [tmp_path / "p.hea"], tmp_path / "out", progress=False)
    np.testing.assert_allclose(np.load(tmp_path / "out/p.npy"), expected.detach(), atol=1e-4)
    activity = cpc.load_pretrained("activity-small").encoder
    assert (activity.channel_names[3], activity.units) == ("gyro_x", ("g",) * 3 + ("rad/s",) * 3)


def test_shards_keep_names_and_units(tmp_path: Path) -> None:
    x = rng.normal(size=(3, 200, 2)).astype(np.float32)
    np.savez(tmp_path / "a.npz", x=x, sample_rate_hz=RATE_HZ, channels=NAMES, units=["deg/s", ""])
    shard_corpus(tmp_path / "a.npz", tmp_path / "out")
    plain = opened(Signals(source=str(tmp_path / "out"), valid_share=0.0), SignalEncoder(2, 4, RATE_HZ))
    assert plain.table.units == ["deg/s", ""]
    np.testing.assert_array_equal(plain.samples.read(1), x[1])
    encoder = SignalEncoder(2, 4, RATE_HZ, channel_names=NAMES[::-1], units=["rad/s", "mdeg/s"])
    for source in ("out", "a.npz"):
        corpus = opened(Signals(source=str(tmp_path / source), valid_share=0.0), encoder)
        np.testing.assert_allclose(corpus.samples.read(1, 5, 50), x[1, 5:55, ::-1] * (1, 1000), rtol=1e-6)
        assert corpus.windows(None).__getitems__([(0, 0)]).x.shape == (1, 200, 2)
    with pytest.raises(ValueError, match="recording 0 has the channel gyro_x in deg/s, but the model reads it in T"):
        Signals(source=str(tmp_path / "out")).open(SignalEncoder(2, 4, RATE_HZ, units=["T", ""]))
    with pytest.raises(ValueError, match="has the channels gyro_x, gyro_y, but the model reads a, b"):
        Signals(source=str(tmp_path / "out")).open(SignalEncoder(2, 4, RATE_HZ, channel_names=["a", "b"]))


def test_training_takes_names_and_units(tmp_path: Path) -> None:
    facts: dict[str, Any] = {"x": rng.normal(size=(3, 200, 3)), "sample_rate_hz": RATE_HZ}
    np.savez(tmp_path / "a.npz", channels=["c", "a", "b"], units=["rad/s", "", "uV"], **facts)
    np.savez(tmp_path / "b.npz", **facts)
    data = Signals(source=str(tmp_path / "a.npz"), channels=[2, 0], valid_share=0.0)
    encoder = SignalEncoder(2, 4, RATE_HZ)
    data.open(encoder)
    assert (encoder.channel_names, encoder.units, data.channels) == (None, None, [2, 0])
    data.open(encoder, is_training=True)
    assert (encoder.channel_names, encoder.units) == (("b", "c"), ("uV", "rad/s"))
    assert data.channels == ["b", "c"]  # numbers mean other channels in other files
    nameless = SignalEncoder(3, 4, RATE_HZ)
    Signals(source=str(tmp_path / "b.npz"), valid_share=0.0).open(nameless, is_training=True)
    assert (nameless.channel_names, nameless.units) == (None, None)


def test_an_encoder_of_other_units_does_not_start_from_a_model(tmp_path: Path) -> None:
    model_of(tmp_path / "initial", NAMES, ("rad/s", "uV"))
    model = cpc.CPC(SignalEncoder(2, 4, RATE_HZ), cpc.contexts.GRU(5), cpc.predictors.Bilinear(1))
    start_from(model, tmp_path / "initial")
    assert (model.encoder.channel_names, model.encoder.units) == (NAMES, ("rad/s", "uV"))
    model.encoder.set_channels(None, ["deg/s", "uV"])
    refuses(r"model.encoder: units \('rad/s', 'uV'\) in the saved model", start_from, model, tmp_path / "initial")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"channel_names": ["a"]}, r"channel_names=\['a'\] must be 2 strings in a list"),
        ({"channel_names": ["a", "a"]}, "no name twice"),
        ({"units": "uV"}, "units='uV' must be 2 strings in a list"),
    ],
)
def test_names_and_units_are_one_string_each(options: dict[str, Any], message: str) -> None:
    refuses(message, SignalEncoder, 2, 4, RATE_HZ, **options)
