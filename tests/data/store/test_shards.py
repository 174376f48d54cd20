"""Sharded corpora against the packs that they were cut from, behind a server that fails in every way."""

import fcntl
import hashlib
import json
import os
import pickle
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from opened import open_audio
from refusals import refuses

from cpc.data import index_folder
from cpc.data.sharding import shard_corpus
from cpc.data.store import shards as fetching
from cpc.data.store.shards import INDEX_NAME, Shards, fetch, parse_index, shard_name
from cpc.encoders import AudioEncoder

ENCODER = AudioEncoder(dim=8)


class Faulty(SimpleHTTPRequestHandler):
    """Serves a folder; each request takes the next fault: an empty answer, half of the file, other bytes, 500."""

    faults: list[str] = []  # noqa: RUF012 - shared by all requests, on purpose
    asked: list[str] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self.asked.append(self.path)
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "500":
            self.send_error(500)
        elif fault == "slow":
            time.sleep(0.05)
            super().do_GET()
        elif fault:
            content = (Path(self.directory) / self.path.lstrip("/")).read_bytes()
            sent = {"drop": b"", "half": content[: len(content) // 2], "other": b"x" * len(content)}
            sent["longer"], sent["shorter"] = content + b"x", content[:-1]
            self.send_response(200)
            promised = len(sent[fault] if fault in ("other", "longer", "shorter") else content)
            self.send_header("Content-Length", str(promised))
            self.end_headers()
            self.wfile.write(sent[fault])
            self.close_connection = True
        else:
            super().do_GET()

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def local(tmp_path: Path, write_audio: Callable[..., Path]) -> Path:
    for number in range(6):
        place = tmp_path / "audio" / ("train" if number < 4 else "valid") / f"s{number % 2}" / f"{number}.wav"
        write_audio(place, seconds=0.3 + 0.1 * number, seed=number)
    index_folder(tmp_path / "audio", split_level=0, speaker_level=1, progress=False)
    return tmp_path / "audio"


@pytest.fixture
def sharded(local: Path, tmp_path: Path) -> Path:
    shard_corpus(local, tmp_path / "shards", shard_mb=0.02)
    return tmp_path / "shards"


@pytest.fixture
def url(sharded: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(fetching, "FIRST_WAIT_SECONDS", 0.01)
    Faulty.faults, Faulty.asked = [], []
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Faulty, directory=str(sharded)))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def batches(source: str | Path, num_batches: int = 20, **options: object) -> list[bytes]:
    """Batches of training, as bytes."""
    corpus = open_audio(source, ENCODER, 3200, **options)
    windows = corpus.windows("train")
    stream = corpus.batches(windows, "uniform", 4, 0)
    found = [windows.__getitems__(stream.batch(index)) for index in range(num_batches)]
    return [b"".join(part.numpy().tobytes() for part in batch[:5]) for batch in found]


def test_batches_and_statistics_are_those_of_the_pack(local: Path, sharded: Path) -> None:
    assert len(list(sharded.glob("rows-*.bin"))) > 3
    assert batches(sharded) == batches(local)
    whole, cut = (open_audio(source, ENCODER, 3200) for source in (local, sharded))
    assert whole.table.columns == cut.table.columns
    assert whole.statistics("train") == cut.statistics("train")
    for row, length in enumerate(whole.samples.num_samples.tolist()):  # across the edges of shards
        expected = whole.samples.read(row, 7, length)
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(cut.samples)).read(row, 7, length), expected)


@pytest.mark.slow
def test_faults_of_a_server_change_nothing(local: Path, url: str, tmp_path: Path) -> None:
    Faulty.faults = ["500", "half", "drop", "500"] * 2 + ["", "other", "longer", "shorter", "half", "500"] * 2
    assert batches(url, cache_dir=tmp_path / "cache") == batches(local)
    assert not Faulty.faults
    num_asked = len(Faulty.asked)
    assert batches(url, cache_dir=tmp_path / "cache") == batches(local)
    assert Faulty.asked[num_asked:] == [f"/{INDEX_NAME}"]  # all else is in the cache


def test_the_cache_keeps_its_bound(local: Path, url: str, tmp_path: Path) -> None:
    assert batches(url, cache_dir=tmp_path / "cache", cache_gb=5e-5) == batches(local)
    assert 2e4 < sum(path.stat().st_size for path in (tmp_path / "cache").rglob("rows-*")) <= 5e4
    refuses(r"`cache_gb`=1e-06 must hold two shards", Shards, url, tmp_path / "cache", cache_gb=1e-6)


def test_a_cache_that_is_cleared_is_filled_again(local: Path, url: str, tmp_path: Path) -> None:
    shards, num_asked = Shards(url, tmp_path / "cache"), len(Faulty.asked)
    expected = shards.read(0, 10).copy()
    shutil.rmtree(tmp_path / "cache")
    np.testing.assert_array_equal(shards.read(0, 10), expected)
    assert len(Faulty.asked) - num_asked < 20


def test_a_shard_that_others_remove(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = Shards(url, tmp_path / "cache").read(0, 10)
    shards = Shards(url, tmp_path / "other")
    monkeypatch.setattr(Path, "replace", lambda new, _: new.unlink())
    np.testing.assert_array_equal(shards.read(0, 10), expected)


def test_other_bytes_of_the_right_size_are_noticed(sharded: Path, url: str, tmp_path: Path) -> None:
    """Zeros in a cache, as a loss of power leaves them, are fetched again; in a local folder they are named."""
    expected = Shards(url, tmp_path / "cache").read(0, 10)
    (damaged,) = (tmp_path / "cache").rglob(shard_name(0))
    damaged.write_bytes(bytes(damaged.stat().st_size))
    np.testing.assert_array_equal(Shards(url, tmp_path / "cache").read(0, 10), expected)
    assert damaged.read_bytes() == (sharded / shard_name(0)).read_bytes()
    (sharded / shard_name(0)).write_bytes(bytes(damaged.stat().st_size))
    refuses(r"rows-00000\.bin is missing or damaged", Shards(sharded).read, 0, 10)


def test_a_shard_is_synced_first(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards, written = Shards(url, tmp_path), []
    monkeypatch.setattr(os, "fsync", lambda file: written.append(os.fstat(file).st_size))
    shards.read(0, 10)
    assert written == [20000]


def test_a_cache_that_may_only_be_read(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = Shards(url, tmp_path).read(0, 10)

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "utime", refuse)  # root, who runs tests, may do all
    np.testing.assert_array_equal(Shards(url, tmp_path).read(0, 10), expected)


def test_one_process_at_a_time_makes_room(url: str, tmp_path: Path) -> None:
    """A shard that another one writes is left alone; what a killed one left is removed."""
    shards = Shards(url, tmp_path)
    new = shards.folder / f"{shard_name(1)}.0123.new"
    new.touch()
    writing = os.open(shards.folder, os.O_RDONLY)
    fcntl.flock(writing, fcntl.LOCK_EX)
    reader = threading.Thread(target=shards.read, args=(0, 10))
    reader.start()
    reader.join(0.3)
    assert new.exists()
    os.close(writing)
    reader.join(30)
    assert [path.name for path in shards.folder.glob("rows-*")] == [shard_name(0)]


def test_a_server_that_stays_away_ends_clearly(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(fetching.time, "sleep", waits.append)
    monkeypatch.setattr(fetching, "FIRST_WAIT_SECONDS", 0.5)
    Faulty.faults = ["500"] * 10
    with pytest.raises(ConnectionError, match=rf"{url}/{INDEX_NAME} could not be read: 10 attempts .*500"):
        Shards(url, tmp_path)
    assert waits == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    with pytest.raises(FileNotFoundError, match=f"there is no {url}/none"):
        fetch(f"{url}/none", 10, len)
    refuses("nothing://x cannot be opened", fetch, "nothing://x", 10, len)


READER = """
import sys, hashlib
from cpc.data import Audio
from cpc.data.store import shards as fetching
from cpc.encoders import AudioEncoder
fetching.FIRST_WAIT_SECONDS = 0.01
data = Audio(manifest=sys.argv[1], window_samples=3200, cache_dir=sys.argv[2], cache_gb=5e-5)
corpus = data.open(AudioEncoder(dim=8))
corpus.prepare()
windows = corpus.windows("train")
stream = corpus.batches(windows, "uniform", 4, 0)
with open(sys.argv[3], "a+") as seen:
    seen.seek(0)
    for index in range(len(seen.readlines()), 100):
        batch = windows.__getitems__(stream.batch(index))
        seen.write(hashlib.sha256(b"".join(part.numpy().tobytes() for part in batch[:5])).hexdigest() + "\\n")
        seen.flush()
"""


@pytest.mark.slow
def test_twenty_kills_lose_and_repeat_nothing(local: Path, url: str, tmp_path: Path) -> None:
    """Of a reader whose server is slow, breaks off, lies and answers 500, and whose cache holds a part of it all."""
    draws, num_kills = random.Random(0), 0
    Faulty.faults = draws.choices(["", "slow", "500", "half", "drop", "other"], [5, 1, 1, 1, 1, 1], k=5000)
    (tmp_path / "reader.py").write_text(READER)
    seen = tmp_path / "seen.txt"
    while True:
        command = [sys.executable, str(tmp_path / "reader.py"), url, str(tmp_path / "cache"), str(seen)]
        with subprocess.Popen(command) as reader:
            num_before = len(seen.read_text().splitlines()) if seen.exists() else 0
            if num_kills == 20:
                assert reader.wait(300) == 0
                break
            while not seen.exists() or len(seen.read_text().splitlines()) == num_before:
                assert reader.poll() is None
                time.sleep(0.01)
            time.sleep(draws.uniform(0, 0.1))
            reader.kill()
            num_kills += 1
    expected = [hashlib.sha256(batch).hexdigest() for batch in batches(local, num_batches=100)]
    assert seen.read_text().split() == expected


def test_memory_and_file_urls(local: Path, sharded: Path, tmp_path: Path) -> None:
    import fsspec

    fsspec.filesystem("memory").put(str(sharded), "/corpus", recursive=True)
    for source in ("memory://corpus", f"file://{sharded}"):
        assert batches(source, cache_dir=tmp_path / "cache") == batches(local)


def test_damage_is_named(sharded: Path, tmp_path: Path) -> None:
    refuses("already exists", shard_corpus, tmp_path / "audio", sharded)
    (sharded / shard_name(0)).write_bytes(b"short")
    refuses(r"rows-00000\.bin is missing or damaged", batches, sharded)
    (sharded / "rows.npy").write_bytes(b"x" * (sharded / "rows.npy").stat().st_size)
    refuses(r"rows\.npy is missing or damaged", Shards, sharded)
    (sharded / INDEX_NAME).write_text("{")
    refuses(rf"^{sharded}/shards\.json is not JSON; was it cut off\?", Shards, sharded)


INDEX = {
    "format": 1,
    "shard_bytes": 10,
    "num_bytes": 25,
    "shards": ["0" * 64] * 3,
    "files": {name: {"num_bytes": 5, "sha256": "0" * 64} for name in ("index.json", "rows.npy", "manifest.csv")},
}


def test_names_that_lead_out_of_the_folder_are_refused() -> None:
    assert [size for size, _ in parse_index(json.dumps(INDEX).encode())[3].values()][:4] == [10, 10, 5, 5]
    files = INDEX["files"] | {"../escaped": INDEX["files"]["rows.npy"]}
    refuses("files must be", parse_index, json.dumps(INDEX | {"files": files}).encode())
