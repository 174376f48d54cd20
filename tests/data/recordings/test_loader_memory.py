"""Hours of audio through the loader of training leave the process as large as it was."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from opened import open_audio
from torchdata.stateful_dataloader import StatefulDataLoader

from cpc.encoders import AudioEncoder

STATUS = Path("/proc/self/status")


def private_mib() -> float:
    """Resident memory that is the process's own; the mapped audio belongs to the page cache."""
    found = re.search(r"^RssAnon:\s+(\d+) kB", STATUS.read_text(), re.MULTILINE)
    return int(found[1]) / 1024


@pytest.mark.filterwarnings("ignore:.*set_vital.*")  # torchdata 0.11 with torch 2.14
@pytest.mark.skipif(not STATUS.exists(), reason="needs Linux' /proc")
@pytest.mark.usefixtures("unchecked_types")  # of thousands of equal calls
@pytest.mark.parametrize("sampler", ["uniform", "same_speaker"])
def test_memory_stays_as_it_is(sampler: str, tmp_path: Path, write_corpus: Callable[..., Path]) -> None:
    corpus = open_audio(write_corpus(tmp_path, 3, seconds=3.0, train=12), AudioEncoder(dim=4), 20480)
    windows = corpus.windows("train")
    batches = corpus.batches(windows, sampler, 8, seed=0, speakers_per_batch=2)
    loader = iter(StatefulDataLoader(windows, batch_sampler=batches, collate_fn=lambda whole: whole))
    for _ in range(300):
        next(loader)
    before = private_mib()
    for _ in range(4000):  # 11 hours of audio
        next(loader)
    assert private_mib() - before < 3
