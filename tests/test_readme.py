"""README's commands for a folder of one's own, as they stand there, on a few seconds of audio."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cpc.cli import main

REPOSITORY = Path(__file__).parents[1]
SMALLER = {
    "pretrain": """--model.encoder.init_args.dim 8 --model.context.init_args.dim 8 --data.window_samples 3200
        --data.eval_batches 2 --trainer.max_steps 2 --trainer.accelerator cpu --eval_every_steps 2""",
    "evaluate": "--num_batches 2",
    "probe": "--supervised_seconds 1 --num_seeds 1",
}


def own_audio() -> str:
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    return readme.split("## Your own audio")[1].split("\n## ")[0]


def commands() -> list[list[str]]:
    """What follows `uv run cpc` in the section's block."""
    block = re.search(r"```sh\n(.*?)```", own_audio(), re.DOTALL)
    assert block
    lines = [shlex.split(line, comments=True) for line in block[1].splitlines()]
    return [words[3:] for words in lines if words[:3] == ["uv", "run", "cpc"]]


def run(words: list[str], folder: Path) -> None:
    main([str(folder) if word == "DIR" else word for word in words] + shlex.split(SMALLER.get(words[0], "")))


@pytest.fixture
def folder(tmp_path: Path, write_audio: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """`<speaker>/<utterance>` of a folder like anybody's; the commands run beside it, where `configs` are."""
    (tmp_path / "configs").symlink_to(REPOSITORY / "configs")
    monkeypatch.chdir(tmp_path)
    for number in range(30):
        rate = (16000, 22050)[number % 2]
        path = tmp_path / "own" / f"speaker{number % 3}" / f"{number}.flac"
        write_audio(path, seconds=0.5, sample_rate_hz=rate, seed=number)
    return tmp_path / "own"


def test_every_command_works_from_a_plain_folder_to_features(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = commands()
    assert [words[0] for words in asked] == ["data", "pretrain", "pretrain", "evaluate", "probe", "embed"]
    for words in asked:
        run(words, folder)
        capsys.readouterr()
    lines = (tmp_path / "runs/mine/bound.jsonl").read_text().splitlines()
    assert {json.loads(line)["split"] for line in lines} == {"train", "valid"}
    report = json.loads((tmp_path / "runs/mine/probe.json").read_text())
    assert report["tasks"]["speaker"]["protocol"]["classes"] == ["speaker0", "speaker1", "speaker2"]
    written = sorted(path.relative_to(tmp_path / "features").as_posix() for path in tmp_path.glob("features/**/*.npy"))
    assert written == sorted(f"speaker{number % 3}/{number}.npy" for number in range(30))
    assert np.load(tmp_path / "features/speaker0/0.npy").shape == (50, 8)


def test_a_folder_without_speakers_takes_the_options_named(folder: Path, tmp_path: Path) -> None:
    assert "`--trainer.callbacks null`" in own_audio()
    index, pretrain = commands()[:2]
    assert index[-2:] == ["--speaker_level", "0"]
    run(index[:-2], folder)
    run([*pretrain, "--trainer.callbacks", "null"], folder)
    assert (tmp_path / "runs/mine/model/config.json").exists()
