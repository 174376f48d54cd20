"""A run goes on with the files that it began with, wherever they lie now, and with no others: one test a modality."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from opened import open_audio
from PIL import Image
from refusals import refuses

from cpc.data import Images, Sentences
from cpc.data.streams.stream import check_same_batches
from cpc.encoders import AudioEncoder, SentenceEncoder
from cpc.encoders.patch_grid import PatchGrid


class Grid:
    grid, num_channels, fully_convolutional, pixel_mean = PatchGrid(8, 4), 3, False, torch.zeros(3)


def made_from_audio(folder: Path) -> dict[str, Any]:
    encoder = AudioEncoder(4, kernels=(10,), strides=(10,), paddings=(0,))
    made_from: dict[str, Any] = open_audio(folder, encoder, 200).windows("train").draws["made_from"]
    return made_from


def made_from_images(folder: Path, packed: bool) -> dict[str, Any]:
    options: dict[str, Any] = {"image_size": 12, "augmentation": "none", "packed": packed, "valid_share": 0.0}
    made_from: dict[str, Any] = Images(source=str(folder), **options).open(Grid()).windows("train").draws["made_from"]
    return made_from


@pytest.fixture
def audio(tmp_path: Path, write_corpus: Callable[..., Path]) -> Path:
    return write_corpus(tmp_path / "audio", 1, seconds=0.05, train=4, valid=2)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    for number in range(6):
        path = folder / "train" / "a" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(number).integers(0, 255, (12, 12, 3), np.uint8)).save(path)
    return folder


READERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "audio": made_from_audio,
    "images": lambda folder: made_from_images(folder, packed=True),
    "images, not packed": lambda folder: made_from_images(folder, packed=False),
}


@pytest.fixture(params=list(READERS))
def source(request: pytest.FixtureRequest) -> tuple[Path, Callable[[Path], dict[str, Any]]]:
    return request.getfixturevalue(request.param.partition(",")[0]), READERS[request.param]


def test_files_that_moved_are_the_same(source: tuple[Path, Callable], tmp_path: Path) -> None:
    """A copy at another path, with other times, without the pack."""
    folder, made_from = source
    saved = made_from(folder)
    copy = tmp_path / "elsewhere" / "copy"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(".cpc_cache"))
    for path in copy.rglob("*"):
        os.utime(path, (1, 1))
    check_same_batches(saved, made_from(copy))


def test_other_content_of_the_same_size_is_refused(
    source: tuple[Path, Callable], write_audio: Callable[..., Path]
) -> None:
    folder, made_from = source
    saved = made_from(folder)
    path = next(iter(sorted(folder.rglob("2.*"))))
    times = path.stat()
    if path.suffix == ".wav":
        write_audio(path, 0.05, seed=77)
        assert path.stat().st_size == times.st_size
    else:
        Image.fromarray(np.random.default_rng(77).integers(0, 255, (12, 12, 3), np.uint8)).save(path)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    shutil.rmtree(folder / ".cpc_cache", ignore_errors=True)  # which knows sizes and times
    refuses(r"would change: other content of (audio files|images)", check_same_batches, saved, made_from(folder))


def test_files_of_like_length_that_change_their_split_are_refused(audio: Path) -> None:
    saved = made_from_audio(audio)
    manifest = audio / "manifest.csv"
    swapped = manifest.read_text().replace("train/s0/1.wav", "X").replace("valid/s0/4.wav", "train/s0/1.wav")
    manifest.write_text(swapped.replace("X", "valid/s0/4.wav"))
    refuses("other paths .*, other content of audio files", check_same_batches, saved, made_from_audio(audio))


def test_other_tokens_in_sentences_of_the_same_length_are_refused(tmp_path: Path) -> None:
    def made_from(name: str, text: str) -> dict[str, Any]:
        book = tmp_path / name / "train.txt"
        book.parent.mkdir()
        book.write_text(text)
        data = Sentences(source=str(book.parent), window_sentences=2, passage_sentences=4)
        corpus = data.open(SentenceEncoder(num_tokens=6, dim=4, embedding_dim=4), is_training=True)
        found: dict[str, Any] = corpus.windows("train").draws["made_from"]
        return found

    saved = made_from("saved", "Cold sea. Red sea. Red sun.")
    check_same_batches(saved, made_from("copy", "Cold sea. Red sea. Red sun."))
    for name, text in (("word", "Cold sea. Red sun. Red sea."), ("cut", "Cold sea red. Sea. Red sun.")):
        refuses("other content of passages", check_same_batches, saved, made_from(name, text))


def test_checkpoints_that_know_no_content_are_compared_by_what_they_know() -> None:
    here = {"seed": 0, "paths of audio files": "a", "held-out content of audio files": "b"}
    check_same_batches({"seed": 0}, here)
    refuses("seed 1 -> 0", check_same_batches, {"seed": 1}, here)
    refuses("held-out content", check_same_batches, here, {"seed": 0})
