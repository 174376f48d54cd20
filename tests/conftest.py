"""What every test may rely on: no network, fixed seeds, one thread, a little real audio."""

import os

# Tensors here are small: a second thread mostly waits for the first, busily where cores are shared. What needs several
# asks for them itself. Before NumPy and torch are imported, and for the processes that tests start.
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

import contextlib
import random
import runpy
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
import soundfile
import torch
from hypothesis import settings
from PIL import Image

if not torch.cuda.is_available():  # the kernel of the losses then runs in Triton's interpreter
    os.environ["TRITON_INTERPRET"] = "1"
settings.register_profile("fuzz", max_examples=100_000)  # the long form of tests that are marked so


@pytest.fixture(autouse=True, scope="session")
def _no_network() -> Iterator[None]:
    """Refuse connections that leave the machine; process groups and servers under test stay on it."""
    connect = socket.socket.connect

    def connect_locally(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX and not str(address[0]).startswith(("127.", "::1", "localhost", "0.0.0.0")):
            raise RuntimeError(f"a test tried to reach {address}: tests use no network")
        connect(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", connect_locally)
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield


@pytest.fixture(autouse=True)
def _fixed_seeds() -> None:
    """A failure must not depend on which tests ran before."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """The CPU, and with `pytest -m gpu` the GPU."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    name: str = request.param
    return name


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def set_num_threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must exit with status 2, and return what it prints on stderr."""
    from cpc.cli import main

    def refusal(arguments: list[str]) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main(arguments)
        assert exit_.value.code == 2
        return capsys.readouterr().err

    return refusal


@pytest.fixture
def prepare(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run `datasets/CORPUS/prepare.py`, and return what it prints; `refused` is the message that it must end with."""

    def prepare(corpus: str, *arguments: str | Path, refused: str = "") -> str:
        script = str(Path(__file__).parents[1] / "datasets" / corpus / "prepare.py")
        monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
        with pytest.raises(SystemExit, match=refused) if refused else contextlib.nullcontext():
            runpy.run_path(script, run_name="__main__")
        return capsys.readouterr().out

    return prepare


@pytest.fixture
def unchecked_types() -> Iterator[None]:
    """Without the type checker, as users run: what it would refuse must reach our own messages, and in a loop of
    thousands of equal calls it would take most of the time.
    """
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def write_audio() -> Callable[..., Path]:
    """A function that writes a short file of speech-like sound: a gliding tone in noise, told apart by seed."""

    def write(
        path: Path, seconds: float = 0.5, *, sample_rate_hz: int = 16000, num_channels: int = 1, seed: int = 0
    ) -> Path:
        rng = np.random.default_rng(seed)
        time = np.arange(round(seconds * sample_rate_hz)) / sample_rate_hz
        pitch_hz = rng.uniform(90, 250)
        phase = 2 * np.pi * pitch_hz * (time + 0.1 * time**2)
        tone = sum(np.sin(order * phase) / order for order in range(1, 6))
        noise = rng.standard_normal((len(time), num_channels))
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, 0.1 * tone[:, None] + 0.01 * noise, sample_rate_hz)
        return path

    return write


@pytest.fixture(scope="session")
def write_corpus(write_audio: Callable[..., Path]) -> Callable[..., Path]:
    """A function that writes so many files of each split as SPLIT/SPEAKER/NUMBER.wav, and their manifest."""

    def write(folder: Path, num_speakers: int = 2, seconds: float = 0.5, **splits: int) -> Path:
        from cpc.data.audio.index import index_folder

        for number, split in enumerate(split for split, num in splits.items() for _ in range(num)):
            write_audio(folder / split / f"s{number % num_speakers}" / f"{number}.wav", seconds, seed=number)
        index_folder(folder, split_level=0, speaker_level=1, progress=False)
        return folder

    return write


@pytest.fixture(scope="session")
def audio_folder(tmp_path_factory: pytest.TempPathFactory, write_audio: Callable[..., Path]) -> Path:
    """`<speaker>/<utterance>`: 3 speakers x 4 files of 0.4 to 1.8 s, 16 kHz mono FLAC, save one WAV, OGG and MP3.

    The odd ones: `ann/2.wav` is 44.1 kHz stereo, `bob/1.ogg` 8 kHz, `eve/3.mp3` 22.05 kHz. Read it, never write to it.
    """
    folder = tmp_path_factory.mktemp("audio")
    odd = {"ann/2": ("wav", 44100, 2), "bob/1": ("ogg", 8000, 1), "eve/3": ("mp3", 22050, 1)}
    for number, speaker in enumerate(("ann", "bob", "eve")):
        for index in range(4):
            suffix, rate, channels = odd.get(f"{speaker}/{index}", ("flac", 16000, 1))
            seconds = 0.4 + 0.35 * index + 0.1 * number
            path = folder / speaker / f"{index}.{suffix}"
            write_audio(path, seconds, sample_rate_hz=rate, num_channels=channels, seed=10 * number + index)
    return folder


@pytest.fixture
def beside_configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in which commands run, but for `configs`."""
    (tmp_path / "configs").symlink_to(Path(__file__).parents[1] / "configs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def own_audio(beside_configs: Path, write_audio: Callable[..., Path]) -> Path:
    """`<speaker>/<utterance>` of a folder like anybody's, with two speakers in each split, where commands run."""
    for number in range(60):
        path = beside_configs / "own" / f"speaker{number % 3}" / f"{number}.flac"
        write_audio(path, seconds=0.5, sample_rate_hz=(16000, 22050)[number % 2], seed=number)
    return beside_configs / "own"


@pytest.fixture
def own_images(beside_configs: Path) -> Path:
    """`<class>/<name>` of 80 pictures, dark or light, where commands run."""
    rng = np.random.default_rng(0)
    for number in range(80):
        path = beside_configs / "own" / ("dark", "light")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 128, (70, 80, 3), np.uint8) + 127 * np.uint8(number % 2)
        Image.fromarray(pixels).save(path)
    return beside_configs / "own"
