"""Windows per second from packs and shards through the loader that training uses, nothing else running.

python -m benchmarks.loader [--modality audio|signals] [--seconds S]

The corpus is noise in a temporary folder, one hour in 360 files of 8 groups, read once before the clock starts; of
shards also the first pass, which checks them. Audio is one channel at 16 kHz; signals are twelve channels at 500 Hz, as
in configs/signals/ecg.yaml. `masked` signals lack a tenth of the samples.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from benchmarks.machine import machine_state
from benchmarks.noise import NUM_SPEAKERS, write_noise
from cpc.data import Audio, Signals
from cpc.data.map_style import MapStyleCorpus, Sampler
from cpc.data.sharding import shard_corpus
from cpc.encoders import AudioEncoder, SignalEncoder

BATCH_SIZE, NUM_FILES, FILE_SECONDS = 8, 360, 10.0
WINDOW_SECONDS = {"audio": 1.28, "signals": 5.0}
SIGNAL_RATE_HZ, NUM_CHANNELS = 500.0, 12


def audio_corpora(folder: Path) -> Iterator[tuple[str, MapStyleCorpus]]:
    """Yield the corpus from each kind of source."""
    manifest, encoder = write_noise(folder, NUM_FILES, FILE_SECONDS), AudioEncoder()
    shard_corpus(manifest, shards := folder / "shards")
    window_samples = round(WINDOW_SECONDS["audio"] * encoder.sample_rate_hz)
    for name, source in (("pack", manifest), ("shards", shards), ("shards fetched", f"file://{shards}")):
        data = Audio(manifest=str(source), window_samples=window_samples, cache_dir=str(folder / "cache"))
        yield name, data.open(encoder)


def signal_corpora(folder: Path) -> Iterator[tuple[str, MapStyleCorpus]]:
    """Yield the corpus from each kind of source."""
    rng, length = np.random.default_rng(0), round(FILE_SECONDS * SIGNAL_RATE_HZ)
    x = rng.standard_normal((NUM_FILES, length, NUM_CHANNELS), np.float32)
    about: dict[str, Any] = {"group": np.arange(NUM_FILES) % NUM_SPEAKERS, "sample_rate_hz": SIGNAL_RATE_HZ}
    np.savez(folder / "signals.npz", x=x, **about)
    x[:, length // 2 : length // 2 + length // 10] = np.nan
    np.savez(folder / "masked.npz", x=x, **about)
    shard_corpus(folder / "signals.npz", shards := folder / "shards")
    encoder = SignalEncoder(NUM_CHANNELS, sample_rate_hz=SIGNAL_RATE_HZ)
    sources: dict[str, tuple[str | Path, Literal["refuse", "mask"]]] = {
        "pack": (folder / "signals.npz", "refuse"),
        "masked": (folder / "masked.npz", "mask"),
        "shards": (shards, "refuse"),
        "shards fetched": (f"file://{shards}", "refuse"),
    }
    for name, (source, missing) in sources.items():
        options: dict[str, Any] = {"window_seconds": WINDOW_SECONDS["signals"], "cache_dir": str(folder / "cache")}
        yield name, Signals(source=str(source), missing=missing, valid_share=0.0, **options).open(encoder)


CORPORA = {"audio": audio_corpora, "signals": signal_corpora}


def windows_per_second(corpus: MapStyleCorpus, sampler: Sampler, seconds: float) -> float:
    corpus.prepare()
    windows = corpus.windows("train")
    batches = corpus.batches(windows, sampler, BATCH_SIZE, seed=0, speakers_per_batch=2)
    loader = iter(StatefulDataLoader(windows, batch_sampler=batches, collate_fn=lambda whole: whole, num_workers=0))
    for _ in range(200):
        next(loader)
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        count += len(next(loader).x)
    return count / (time.perf_counter() - start)


def first_pass(corpus: MapStyleCorpus, window_seconds: float) -> float:
    """Times real time of as many windows as fill the corpus, the first that a process reads."""
    corpus.prepare()
    windows = corpus.windows("train")
    batches = corpus.batches(windows, "uniform", BATCH_SIZE, seed=0)
    seconds = NUM_FILES * FILE_SECONDS
    start = time.perf_counter()
    for index in range(round(seconds / window_seconds / BATCH_SIZE)):
        windows.__getitems__(batches.batch(index))
    return seconds / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modality", choices=CORPORA, default="audio")
    parser.add_argument("--seconds", type=float, default=10.0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    figures, window_seconds = {}, WINDOW_SECONDS[arguments.modality]
    with tempfile.TemporaryDirectory() as folder:
        for name, corpus in CORPORA[arguments.modality](Path(folder)):
            if name == "shards":
                figures["times_real_time_shards_first_pass"] = round(first_pass(corpus, window_seconds))
                print(f"{name:15} first pass {figures['times_real_time_shards_first_pass']} times real time")
            for sampler in ("uniform", "same_speaker"):
                rate = windows_per_second(corpus, sampler, arguments.seconds)
                times = figures[f"times_real_time_{name}_{sampler}"] = round(rate * window_seconds)
                print(f"{name:15} {sampler:14} {rate:9.0f} windows/s, {times} times real time")
    print(json.dumps(figures | {"machine": machine_state(allocator_keeps_memory=False)}))


if __name__ == "__main__":
    main()
