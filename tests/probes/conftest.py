"""A corpus whose labels are known and easy: tones as phones, levels as speakers; and a tiny model."""

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from opened import BOUND, open_audio

import cpc
from cpc.contexts import GRU
from cpc.data import Audio, Manifest, read_manifest
from cpc.data.audio.probe_data import AudioProbeData
from cpc.encoders import AudioEncoder
from cpc.predictors import Bilinear

RATE = 16000
TONES_HZ = {"low": 300.0, "mid": 1200.0, "high": 3000.0}
LEVELS = {"ann": 0.02, "bob": 0.1, "eve": 0.4}
SEGMENT_SECONDS = 0.1


def tiny_model(seed: int = 0, **encoder_arguments: object) -> cpc.CPC:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = cpc.CPC(AudioEncoder(dim=12, **encoder_arguments), GRU(dim=10), Bilinear(num_steps=2))
    model.encoder.set_statistics(0.0, 0.1)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model.initialise_from(0.1 * torch.randn(2, 4000))
    return model


@pytest.fixture
def model() -> cpc.CPC:
    return tiny_model()


@pytest.fixture
def model_folder(model: cpc.CPC, tmp_path: Path) -> Path:
    provenance = {"step": 7, "held_out": [BOUND], "data": Audio(manifest="unknown").saved_settings}
    cpc.save_pretrained(model, tmp_path / "run" / "model", provenance=provenance)
    return tmp_path / "run"


@pytest.fixture(scope="session")
def corpus_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Splits train, valid, test; in each, 3 speakers read 4 files of 4 segments of 0.1 s. Read it, never write to
    it."""
    folder = tmp_path_factory.mktemp("tones")
    rng = np.random.default_rng(0)
    rows, segments = [], []
    for split in ("train", "valid", "test"):
        for speaker, level in LEVELS.items():
            for number in range(4):
                path = f"audio/{split}/{speaker}-{number}.wav"
                # every file begins with a label of its own, so that `first` is a column to probe
                labels = [list(TONES_HZ)[number % 3], *rng.choice(list(TONES_HZ), 3)]
                time = np.arange(round(SEGMENT_SECONDS * RATE)) / RATE
                wave = np.concatenate([np.sin(2 * np.pi * TONES_HZ[label] * time) for label in labels])
                wave = level * (wave + 0.05 * rng.standard_normal(len(wave)))
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                soundfile.write(folder / path, wave, RATE)
                rows.append([path, split, speaker, str(len(wave)), str(RATE), "1", labels[0]])
                segments += [
                    [path, f"{i * SEGMENT_SECONDS:.1f}", f"{(i + 1) * SEGMENT_SECONDS:.1f}", label]
                    for i, label in enumerate(labels)
                ]
    header = ["path", "split", "speaker", "num_samples", "sample_rate_hz", "num_channels", "first"]
    write_csv(folder / "manifest.csv", [header, *rows])
    write_csv(folder / "alignments.csv", [["path", "start", "end", "label"], *segments])
    return folder


@pytest.fixture
def manifest(corpus_folder: Path) -> Manifest:
    return read_manifest(corpus_folder)


@pytest.fixture
def corpus(corpus_folder: Path, tmp_path: Path) -> Path:
    """A folder of one's own with a manifest of the tones, to write to."""
    with (corpus_folder / "manifest.csv").open(newline="") as stream:
        header, *rows = csv.reader(stream)
    (tmp_path / "corpus").mkdir()
    rows = [[str(corpus_folder / path), *values] for path, *values in rows]
    write_csv(tmp_path / "corpus" / "manifest.csv", [header, *rows])
    return tmp_path / "corpus"


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("packs")


def write_csv(path: Path, rows: list[list[str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows(rows)


@pytest.fixture
def audio(model: cpc.CPC, manifest: Manifest, cache_dir: Path) -> Callable[..., AudioProbeData]:
    """Readouts of the tones, perhaps with other columns."""

    def probe_data(columns: dict[str, list[str]] | None = None, **where: Any) -> AudioProbeData:
        corpus = open_audio(manifest.root, model.encoder, 4_000, cache_dir=cache_dir)
        corpus = replace(corpus, table=Manifest(manifest.root, manifest.columns | (columns or {})))
        corpus.prepare()
        return AudioProbeData(corpus, **where)

    return probe_data
