from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from opened import open_audio
from refusals import refuses

import cpc.data.audio.modality
import cpc.data.signals.modality
from cpc.data import Audio, Manifest, Signals, index_folder
from cpc.data.recordings.corpus import RecordingCorpus
from cpc.encoders import SignalEncoder

WINDOW = 800
LEVELS = {"train": 0.1, "valid": 0.3, "test": 0.5}


@dataclass
class Hop160:
    """A latent per 160 samples, its centre in the middle of them."""

    sample_rate_hz: int = 16000
    hop_samples: int = 160
    first_centre_samples: float = 79.5

    def num_latents(self, num_samples: int) -> int:
        return num_samples // self.hop_samples


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three splits, each with a mean and a deviation of its own, two speakers in each."""
    for split, level in LEVELS.items():
        for number in range(4):
            path = tmp_path / split / f"speaker{number % 2}" / f"{split}{number}.wav"
            path.parent.mkdir(parents=True, exist_ok=True)
            noise = np.random.default_rng(number).standard_normal(4000 + number)
            soundfile.write(path, level * (1 + 0.1 * noise), 16000)
    index_folder(tmp_path, split_level=0, speaker_level=1, progress=False)
    return tmp_path


def open_only(folder: Path, **options: str) -> RecordingCorpus:
    return Audio(manifest=str(folder), window_samples=WINDOW, **options).open(Hop160())


def align(folder: Path, *splits: str) -> Path:
    lines = [
        f"{split}{number},{start},{end},{label}"
        for split in splits
        for number in range(4)
        for start, end, label in ((0.0, 0.1, "a"), (0.1, 0.2, "b"))
    ]
    path = folder / "alignments.csv"
    path.write_text("\n".join(["path,start,end,label", *lines]))
    return path


@pytest.fixture
def _no_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("audio must not be touched before everything else is checked")

    monkeypatch.setattr(cpc.data.audio.modality, "pack", fail)
    monkeypatch.setattr(cpc.data.signals.modality, "pack_signals", fail)


def test_statistics_are_those_of_the_split_that_is_trained_on(folder: Path) -> None:
    corpus = open_audio(folder, Hop160(), WINDOW)
    for split, level in LEVELS.items():
        mean, std = corpus.statistics(split)
        assert mean == pytest.approx(level, rel=0.01)
        assert std == pytest.approx(0.1 * level, rel=0.03)
    mean, std = corpus.statistics(None)
    assert mean == pytest.approx(0.3, rel=0.01)
    assert std == pytest.approx(np.std([0.1, 0.3, 0.5]), rel=0.1)


@pytest.mark.usefixtures("_no_decoding")
def test_what_needs_no_audio_is_found_before_any_is_decoded(folder: Path) -> None:
    corpus = open_only(folder, alignments=str(align(folder, "train")))
    corpus.check("train", needs_speakers=True)
    refuses("is of split 'dev'; the splits are test, train, valid", corpus.check, "train", "dev")
    refuses("is of split 'dev'", corpus.windows, "dev")
    refuses(r"alignments of split 'valid': 4 of 4 audio files have no alignment", corpus.check, "train", "valid")
    refuses("no alignments at", open_only, folder, alignments=str(folder / "nowhere"))


@pytest.mark.usefixtures("_no_decoding")
def test_only_prepare_decodes(folder: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros((4, 50, 1)), split=["train"] * 3 + ["valid"], sample_rate_hz=20.0)
    audio = Audio(manifest=str(folder), window_samples=WINDOW)
    signals = Signals(source=str(tmp_path / "x.npz"), window_seconds=1.0)
    for data, encoder, num in ((audio, Hop160(), 4), (signals, SignalEncoder(1, 4, 20.0), 1)):
        corpus = data.open(encoder)
        strategies = ("mixed", "mixed_excluding")
        assert data.measurable(corpus, "valid", strategies) == strategies[: 1 + (num > 1)]
        data.check_split(corpus, "train", strategies, "mixed")
        assert corpus.num_sequences("valid") == len(corpus.rows("valid")) == num
        with pytest.raises(AssertionError, match=r"call prepare\(\) first"):
            corpus.windows("train")
        with pytest.raises(AssertionError, match="must not be touched before"):
            data.prepare(corpus)


@pytest.mark.usefixtures("_no_decoding")
def test_missing_speakers_are_named_before_any_audio_is_decoded(folder: Path) -> None:
    corpus = open_only(folder)
    speakers = corpus.table.column("speaker")
    paths = corpus.table.paths
    speakers[paths.index("valid/speaker1/valid3.wav")] = ""
    Manifest(folder, corpus.table.columns).write(folder / "manifest.csv")
    corpus = open_only(folder)
    corpus.check("train", needs_speakers=True)
    corpus.check("valid")
    refuses(r"1 of the 4 files .* no speaker:\n  valid/speaker1", corpus.check, "train", "valid", needs_speakers=True)
    Manifest(folder, {"path": paths}).write(folder / "manifest.csv")
    refuses(r"12 of the 12 (.|\n)*fill in `speaker`, a column", open_only(folder).check, None, needs_speakers=True)


def test_labels_stand_where_their_latents_do(folder: Path) -> None:
    """`a` holds until sample 1600: from 1200 on, the third latent's centre is at 1599.5, the fourth's at 1759.5."""
    corpus = open_audio(folder, Hop160(), WINDOW, alignments=align(folder, "train"))
    windows = corpus.windows("train")
    batch = windows.__getitems__([(0, 1200), (1, 0), (2, 3100)])
    assert corpus.classes == ["a", "b"]
    assert batch.labels.tolist() == [[0, 0, 0, 1, 1], [0] * 5, [1, -100, -100, -100, -100]]
    assert torch.equal(corpus.windows("valid").__getitems__([(0, 0)]).labels, torch.full((1, 5), -100))


def test_speakers_and_sequences_keep_their_numbers_in_every_split(folder: Path) -> None:
    corpus = open_audio(folder, Hop160(), WINDOW)
    assert corpus.speakers == ["speaker0", "speaker1"]
    splits = {split: corpus.windows(split) for split in (*LEVELS, None)}
    assert sorted(np.concatenate([splits[split].sequence_ids for split in LEVELS])) == list(range(12))
    for windows in splits.values():
        for sequence, group in zip(windows.sequence_ids, windows.group_ids, strict=True):
            assert corpus.speakers[group] in corpus.table.paths[sequence]
