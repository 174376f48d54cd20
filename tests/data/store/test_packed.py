import multiprocessing
import time
from collections.abc import Iterator, Sequence
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import pytest

from cpc.data.store.packed import PackedRows, RowSource, pack_rows

RNG = np.random.default_rng(0)
ROWS = [RNG.integers(-(10**5), 10**5, (length, 3)).astype("<i4") for length in (5, 0, 17, 4, 9)]


class Tokens(RowSource):
    """Rows of triples of any length; the fourth is damaged halfway, the last promises more than it holds."""

    noun, dtype, shape = "row", "<i4", (3,)

    def __init__(self) -> None:
        self.about = {"origin": "a test"}

    def rooms(self, num_workers: int, progress: bool) -> Sequence[int | str]:
        return [5, "row 1: is missing", 17, 4, 20]

    def decode(self, row: int) -> Iterator[np.ndarray]:
        yield ROWS[row][:2]
        if row == 3:
            raise ValueError("row 3: is damaged")
        yield ROWS[row][2:]


class Slow(Tokens):
    """Notes who decodes, and takes its time."""

    def __init__(self, log: Path, seconds: float) -> None:
        super().__init__()
        self.log, self.seconds = log, seconds

    def rooms(self, num_workers: int, progress: bool) -> Sequence[int | str]:
        with self.log.open("a") as stream:
            stream.write(f"{self.seconds}\n")
        time.sleep(self.seconds)
        return super().rooms(num_workers, progress)


def pack_at_once(source: Slow, folder: Path, both_ready: Barrier) -> None:
    both_ready.wait(60)
    time.sleep(0.2 if source.seconds == 1 else 0)  # the other one is first
    pack_rows(source, folder, PackedRows, skip_bad=True, num_workers=1, progress=False)


@pytest.mark.parametrize("first", ["finishes", "is killed"])
def test_one_of_two_processes_decodes(tmp_path: Path, first: str) -> None:
    """The other one waits, and takes over if the first is killed."""
    spawned = multiprocessing.get_context("spawn")
    both_ready, log = spawned.Barrier(2), tmp_path / "log"
    sources = [Slow(log, 2 if first == "finishes" else 600), Slow(log, 1)]
    processes = [spawned.Process(target=pack_at_once, args=(each, tmp_path / "pack", both_ready)) for each in sources]
    for process in processes:
        process.start()
    if first == "is killed":
        while not log.exists():
            time.sleep(0.05)
        time.sleep(0.5)
        assert processes[1].is_alive()
        processes[0].kill()
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0 if first == "finishes" else -9, 0]
    assert log.read_text().split() == (["2"] if first == "finishes" else ["600", "1"])
    assert PackedRows(tmp_path / "pack").lengths.tolist() == [5, 0, 17, 0, 9]
    assert not list(tmp_path.glob("*.lock"))
