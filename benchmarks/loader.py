"""Windows per second from packs and shards through the loader that training uses, nothing else running.

python -m benchmarks.loader [--seconds S]

The corpus is noise in a temporary folder, one hour in 360 files, read once before the clock starts; of shards also the
first pass, which checks them.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from benchmarks.machine import machine_state
from benchmarks.noise import write_noise
from cpc.data.audio.corpus import Corpus, Sampler
from cpc.data.sharding import shard_corpus
from cpc.encoders import AudioEncoder

WINDOW_SAMPLES, BATCH_SIZE, NUM_FILES, FILE_SECONDS = 20480, 8, 360, 10.0


def windows_per_second(corpus: Corpus, sampler: Sampler, seconds: float) -> float:
    windows = corpus.windows("train")
    batches = corpus.batches(windows, sampler, BATCH_SIZE, seed=0, speakers_per_batch=2)
    loader = iter(StatefulDataLoader(windows, batch_sampler=batches, collate_fn=lambda whole: whole, num_workers=0))
    for _ in range(200):
        next(loader)
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        count += len(next(loader).x)
    return count / (time.perf_counter() - start)


def first_pass(corpus: Corpus) -> float:
    """Times real time of as many windows as fill the corpus, the first that a process reads."""
    windows = corpus.windows("train")
    batches = corpus.batches(windows, "uniform", BATCH_SIZE, seed=0)
    seconds = NUM_FILES * FILE_SECONDS
    start = time.perf_counter()
    for index in range(round(seconds * corpus.geometry.sample_rate_hz / WINDOW_SAMPLES / BATCH_SIZE)):
        windows.__getitems__(batches.batch(index))
    return seconds / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    seconds = parser.parse_args().seconds
    torch.set_num_threads(1)
    encoder = AudioEncoder()
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        manifest = write_noise(Path(folder), NUM_FILES, FILE_SECONDS)
        shard_corpus(manifest, shards := Path(folder) / "shards")
        sources: dict[str, str | Path] = {"pack": manifest, "shards": shards, "shards fetched": f"file://{shards}"}
        for name, source in sources.items():
            corpus = Corpus(source, encoder, WINDOW_SAMPLES, cache_dir=Path(folder) / "cache")
            if name == "shards":
                figures["times_real_time_shards_first_pass"] = round(first_pass(corpus))
                print(f"{name:15} first pass {figures['times_real_time_shards_first_pass']} times real time")
            for sampler in ("uniform", "same_speaker"):
                rate = windows_per_second(corpus, sampler, seconds)
                times = figures[f"times_real_time_{name}_{sampler}"] = round(
                    rate * WINDOW_SAMPLES / encoder.sample_rate_hz
                )
                print(f"{name:15} {sampler:14} {rate:9.0f} windows/s, {times} times real time")
    print(json.dumps(figures | {"machine": machine_state(allocator_keeps_memory=False)}))


if __name__ == "__main__":
    main()
