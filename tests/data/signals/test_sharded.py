"""Signals in shards against the recordings themselves."""

import hashlib
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opened import opened
from refusals import refuses
from torchdata.stateful_dataloader import StatefulDataLoader

from cpc import cli
from cpc.data import Signals
from cpc.data.recordings.corpus import RecordingCorpus
from cpc.data.sharding import shard_corpus
from cpc.data.signals.pack import TABLE_NAME
from cpc.data.store.shards import INDEX_NAME
from cpc.encoders import SignalEncoder

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata with torch 2.14

RATE_HZ = 20.5
LENGTHS = [400, 250, 90, 333, 2, 260]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of recordings with every kind of label."""
    root, rng = tmp_path_factory.mktemp("signals"), np.random.default_rng(0)
    lines = ["path,group,mood"]
    for row, length in enumerate(LENGTHS):
        folder = root / f"p{row // 2}"
        folder.mkdir(exist_ok=True)
        words = rng.choice(["", "up", "d\u00f6wn"], length)
        cells = [f"{x:.4f},{y:.4f},{word}" for (x, y), word in zip(rng.normal(size=(length, 2)), words, strict=True)]
        (folder / f"{row}.csv").write_text("x,y,label\n" + "\n".join(cells), encoding="utf-8")
        lines.append(f"p{row // 2}/{row}.csv,p{row // 2},{['good', '', 'bad'][row % 3]}")
    (root / "manifest.csv").write_text("\n".join(lines))
    (root / "labels.csv").write_text("path,start,end,label\n0,1,2.2,cough\n0,3,4,sneeze\n3,0,0,cough\n")
    return root


@pytest.fixture(scope="module")
def sharded(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sharded") / "out"
    options = ["--shard_mb", "0.001", "--sample_rate_hz", str(RATE_HZ)]
    cli.main(["data", "shard", str(source), "--out", str(out), *options])
    return out


def encoder() -> SignalEncoder:
    return SignalEncoder(2, 4, RATE_HZ, kernels=(4, 2), strides=(2, 2))


def open_source(source: str | Path, **options: Any) -> RecordingCorpus:
    options = {"sample_rate_hz": RATE_HZ, "window_seconds": 5.0, "valid_share": 0.3, "labels": "label"} | options
    return opened(Signals(source=str(source), **options), encoder())


def loader(source: str | Path, **options: Any) -> StatefulDataLoader:
    corpus = open_source(source, **options)
    windows = corpus.windows("train", is_training=True)
    batches = corpus.batches(windows, "uniform", 4, 0)
    return StatefulDataLoader(windows, batch_sampler=batches, collate_fn=lambda whole: whole)


def read(iterator: Any, num: int) -> list[bytes]:
    return [b"".join(part.numpy().tobytes() for part in next(iterator)[:5]) for _ in range(num)]


def test_batches_labels_and_statistics_are_those_of_the_recordings(source: Path, sharded: Path, tmp_path: Path) -> None:
    import fsspec

    assert len(list(sharded.glob("rows-*.bin"))) == -(-sum(LENGTHS) // 125)  # samples of 8 bytes
    expected = read(iter(loader(source)), 20)
    assert read(iter(loader(sharded)), 20) == expected
    fsspec.filesystem("memory").put(str(sharded), "/signals", recursive=True)
    cache = {"cache_dir": str(tmp_path / "cache"), "cache_gb": 3e-6}
    assert read(iter(loader("memory://signals", **cache)), 20) == expected
    assert sum(path.stat().st_size for path in (tmp_path / "cache").rglob("rows-*")) <= 3e3
    whole, cut = (open_source(place) for place in (source, sharded))
    for split in ("train", "valid", None):
        np.testing.assert_array_equal(whole.statistics(split), cut.statistics(split))
    for name in ("names", "splits", "groups", "channels", "sample_rate_hz"):
        assert getattr(whole.table, name) == getattr(cut.table, name)
    assert set(cut.table.labels) == {"mood", "label", "interval"}
    for task, labels in whole.table.labels.items():
        assert cut.table.labels[task].classes == labels.classes
        for row, length in enumerate(LENGTHS):
            codes = cut.table.labels[task].codes(row, 0, length)
            np.testing.assert_array_equal(codes, labels.codes(row, 0, length))
    data = [Signals(source=str(sharded)).probe_data(corpus.encoder, corpus) for corpus in (whole, cut)]
    for task, pool in (("mood", "mean_std"), ("label", "frames"), ("interval", "frames")):
        assert [each.default_pool(task) for each in data] == [pool, pool]
    windows = open_source(sharded, labels=None).windows("train")
    sent = pickle.loads(pickle.dumps(windows))
    np.testing.assert_array_equal(sent.__getitems__([(0, 3)]).x, windows.__getitems__([(0, 3)]).x)


def test_a_run_on_shards_resumes_exactly_and_also_on_the_recordings(source: Path, sharded: Path) -> None:
    """A state of the loader names the content, not the place."""
    running = loader(sharded)
    batches = iter(running)
    read(batches, 7)
    state = running.state_dict()
    expected = read(batches, 12)
    for place in (sharded, source):
        resumed = loader(place)
        resumed.load_state_dict(state)
        assert read(iter(resumed), 12) == expected
    other = loader(sharded, window_seconds=4.0)
    other.load_state_dict(state)
    refuses("window_samples", iter, other)


def test_missing_samples_stay_missing(tmp_path: Path) -> None:
    x = np.random.default_rng(1).normal(size=(3, 200, 2))
    x[:, 20:90] = np.nan
    np.savez(tmp_path / "gaps.npz", x=x, sample_rate_hz=RATE_HZ)
    refuses("channel 0 is missing", shard_corpus, tmp_path / "gaps.npz", tmp_path / "out")
    shard_corpus(tmp_path / "gaps.npz", tmp_path / "out", missing="mask")
    refuses(r"have missing=mask\): set `missing` to mask", open_source, tmp_path / "out", labels=None)
    batch = open_source(tmp_path / "out", labels=None, missing="mask").windows(None).__getitems__([(0, 0)])
    np.testing.assert_array_equal(batch.x[0], x[0, :102].astype(np.float32))
    assert batch.is_known[0].sum() == 102 - 70


def test_channels_are_chosen_before_or_after(source: Path, sharded: Path, tmp_path: Path) -> None:
    assert open_source(sharded, channels=["x", "y"]).table.channels == ["x", "y"]
    shard_corpus(source, tmp_path / "out", channels=["y"], sample_rate_hz=RATE_HZ)
    for data in (Signals(source=str(tmp_path / "out")), Signals(source=str(sharded), channels=["y"])):
        corpus = opened(data, SignalEncoder(1, 4, RATE_HZ))
        np.testing.assert_array_equal(corpus.samples.read(1), open_source(source).samples.read(1)[:, 1:])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"missing": "no"}, "missing='no' is not one of refuse, mask"),
        ({"units": "mV"}, "a list of 2 str is missing"),
        ({"labels": {"mood": {"classes": ["a"], "codes": [1] * 6}}}, "integers from 1 to 1 lie outside of -1 to 0"),
        ({"labels": {"mood": {"classes": ["a"], "runs": [[0, 1]] * 6}}}, "runs of labels do not fit"),
    ],
)
def test_damaged_tables_are_named(sharded: Path, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(sharded, folder)
    content = json.dumps(json.loads((folder / TABLE_NAME).read_bytes()) | change).encode()
    (folder / TABLE_NAME).write_bytes(content)
    index = json.loads((folder / INDEX_NAME).read_text())
    index["files"][TABLE_NAME] = {"num_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (folder / INDEX_NAME).write_text(json.dumps(index))
    refuses(f"{TABLE_NAME}: is not a table of signals.*{message}", open_source, folder)


def test_options_of_another_kind_are_refused(source: Path, tmp_path: Path) -> None:
    refuses("`num_channels`=1 does not apply to signals", shard_corpus, source, tmp_path / "out", num_channels=1)
    (tmp_path / "manifest.csv").write_text("path\na.wav\n")
    refuses("`missing`=mask does not apply to audio", shard_corpus, tmp_path, tmp_path / "out", missing="mask")
    refuses(r"`sample_rate_hz`=8000\.5 must be", shard_corpus, tmp_path, tmp_path / "out", sample_rate_hz=8000.5)
