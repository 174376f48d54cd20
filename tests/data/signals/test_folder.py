from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opened import opened
from refusals import refuses

from cpc.data import Signals, index_folder
from cpc.data.recordings.corpus import RecordingCorpus
from cpc.data.sharding import shard_corpus
from cpc.data.signals.pack import pack_signals
from cpc.data.signals.recordings import read_recordings
from cpc.encoders import SignalEncoder

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
    refuses("does not say its sample rate", read_recordings, tmp_path)
    recordings = read_recordings(tmp_path, sample_rate_hz=12.5)
    assert recordings.names == ["a.csv", "b.npy"]
    assert recordings.splits == ["train", "train"]
    packed = pack_signals(recordings, progress=False)
    np.testing.assert_array_equal(packed.read(1, 0, 7000), SIT.astype(np.float32))
    chosen = read_recordings(tmp_path, sample_rate_hz=12.5, channels=["1"])
    np.testing.assert_array_equal(pack_signals(chosen, progress=False).read(0, 0, 300)[:, 0], WALK[:, 1].astype("f4"))


def corpus_of(folder: Path, rate_hz: float, **options: Any) -> RecordingCorpus:
    encoder = SignalEncoder(1, 2, rate_hz, kernels=(2,), strides=(2,))
    return opened(Signals(source=str(folder), valid_share=0.0, **options), encoder)


def test_labels_that_end_after_their_recording_are_refused_with_both_times(tmp_path: Path) -> None:
    """Labels that are not used are not checked."""
    edfio = pytest.importorskip("edfio")
    for name in "ab":
        notes = [edfio.EdfAnnotation(0, 10.2 if name == "b" else 10.04, "move")]
        signals = [edfio.EdfSignal(RNG.normal(size=200), 20, label="x")]
        edfio.Edf(signals, annotations=notes).write(tmp_path / f"{name}.edf")
    (tmp_path / "labels.csv").write_text(
        "path,start,end,label,task\na,0,5000,rest,ms\nb,0,5,rest,half\na,2,2,hit,mark\n"
    )
    corpus = corpus_of(tmp_path, 20)
    refuses(r"'annotation': 1 of 2 (.|\n)*b.edf: labels until 10.2 s", corpus.latent_codes, "annotation", 0, 0, 2)
    refuses(r"'ms': 1 of 1 (.|\n)*a.edf: labels until 5000 s", corpus_of(tmp_path, 20, labels="ms").windows, "train")
    with pytest.warns(UserWarning, match=r"'half': the last label of a file ends at 0.5 of its recording"):
        assert corpus.labels("half").codes(1, 0, 1).tolist() == [0]
    assert corpus.labels("mark").codes(0, 40, 1).tolist() == [0]  # sparse marks may end anywhere
    refuses(r"labels 'annotation': 1 of 2 labelled", shard_corpus, tmp_path, tmp_path / "out")


def test_labels_follow_the_clock_of_their_file(tmp_path: Path) -> None:
    for name, rate in (("a", 50), ("b", 50.4)):  # two devices of nominally 50 Hz
        write_csv(tmp_path / f"{name}.csv", "time,x", np.arange(5000) / rate, RNG.normal(size=5000))
    (tmp_path / "labels.csv").write_text("path,start,end,label\na,0,100,rest\nb,90,99.2,rest\n")
    labels = corpus_of(tmp_path, 50).labels("interval")
    assert np.flatnonzero(labels.codes(1, 0, 5000) == 0).tolist() == list(range(4536, 5000))


def test_lengths_are_those_of_the_samples(tmp_path: Path) -> None:
    """Of empty lines at the end only decoding knows."""
    write_csv(tmp_path / "a.csv", "x,y", *WALK[:100].T)
    with (tmp_path / "a.csv").open("a") as stream:
        stream.write(",\n" * 100)
    (tmp_path / "labels.csv").write_text("path,start,end,label\na,0,15,up\n")
    corpus = corpus_of(tmp_path, 10, sample_rate_hz=10.0, channels=["x"])
    refuses(r"labels until 15 s, recording until 10 s", corpus.labels, "interval")


def test_tables_beside_recordings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edfio = pytest.importorskip("edfio")
    folder = tmp_path / "sub-02" / "eeg"
    folder.mkdir(parents=True)
    start = folder / "sub-02_task-odd_run-1"
    edfio.Edf([edfio.EdfSignal(RNG.normal(size=200), 20, label="Cz")]).write(f"{start}_eeg.edf")
    Path(f"{start}_events.tsv").write_text(
        "onset\tduration\tvalue\ttrial_type\n1\t0.5\t3\tgo\n2\tn/a\t4\tstop\n3\t1\t5\tn/a\nn/a\t5\t3\tgo\n"
    )
    Path(f"{start}_channels.tsv").write_text("name\ttype\tunits\nCz\tEEG\tuV\n")
    (tmp_path / "participants.tsv").write_text("participant_id\tage\nsub-02\t30\n")
    recordings = read_recordings(tmp_path)
    assert recordings.names == ["sub-02/eeg/sub-02_task-odd_run-1_eeg.edf"]
    assert "left out 3 tables and hypnograms beside recordings, such as participants.tsv" in capsys.readouterr().err
    labels = recordings.labels["trial_type"]
    assert labels.classes == ["go", "stop"]
    codes = labels.codes(0, 0, 200)
    assert (np.flatnonzero(codes == 0).tolist(), np.flatnonzero(codes == 1).tolist()) == (list(range(20, 30)), [40])
    Path(f"{start}_events.tsv").write_text("onset\tduration\ttrial_type\nlate\t1\tgo\n")
    refuses(r"_events.tsv, line 2: an event from 'late' of duration '1'", read_recordings, tmp_path)


def test_hypnograms_are_labels_of_their_recordings(tmp_path: Path) -> None:
    """As in Sleep-EDF: two rates, another last letter, and an unscored rest that ends after the recording."""
    edfio = pytest.importorskip("edfio")
    rates = {"Fpz": 20, "Temp": 1}
    signals = [edfio.EdfSignal(RNG.normal(size=100 * rate), rate, label=name) for name, rate in rates.items()]
    for night in ("SC4011E", "SC4012E"):
        edfio.Edf(signals).write(tmp_path / f"{night}0-PSG.edf")
        stages = [(0, 30, "Sleep stage W"), (30, 60, "Sleep stage 1"), (90, 6000, "Sleep stage ?")]
        notes = [edfio.EdfAnnotation(*stage) for stage in stages]
        edfio.Edf([], annotations=notes).write(tmp_path / f"{night}H-Hypnogram.edf")
    recordings = read_recordings(index_folder(tmp_path, test_share=0.0).root, channels=["Fpz"])
    assert recordings.names == ["SC4011E0-PSG.edf", "SC4012E0-PSG.edf"]
    labels = corpus_of(tmp_path, 20, channels=["Fpz"]).labels("hypnogram")
    assert labels.classes == ["Sleep stage 1", "Sleep stage W"]
    assert labels.codes(1, 0, 2000).tolist() == [1] * 600 + [0] * 1200 + [-1] * 200
