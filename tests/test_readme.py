"""README's commands and code as they stand there, on small data; the documents that files name exist."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import cpc
from cpc.cli import main

REPOSITORY = Path(__file__).parents[1]
SMALLER = {
    "pretrain": """--model.encoder.init_args.dim 8 --model.context.init_args.dim 8 --data.window_samples 3200
        --data.speakers_per_batch 2 --data.eval_batches 2 --trainer.max_steps 2 --trainer.accelerator cpu
        --eval_every_steps 2""",
    "monitor": "--export report.html",  # the page itself would serve until it is stopped
    "evaluate": "--num_batches 2",
    "probe": "--supervised_seconds 1",
}


SMALLER_TEXT = {
    "pretrain": """--trainer.max_steps 2 --trainer.accelerator cpu --eval_every_steps 2 --data.batch_size 2
        --model.encoder.init_args.num_tokens 50 --model.loss.init_args.table.init_args.num_classes 50
        --model.loss.init_args.sampler.init_args.num_classes 50 --model.loss.init_args.num_sampled 10""",
    "evaluate": "",
}

SMALLER_IMAGES = {
    "pretrain": """--model.encoder.init_args.trunk.init_args.dim 8 --model.context.init_args.width 8
        --data.eval_batches 2 --data.batch_size 4 --trainer.max_steps 2 --trainer.accelerator cpu --eval_every_steps 2
        --data.valid_share 0.2""",
    "evaluate": "--num_batches 2",
    "probe": "--supervised_seconds 1",
    "picture": "",
    "embed": "",
}


def own(kind: str) -> str:
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    return readme.split(f"## Your own {kind}")[1].split("\n## ")[0]


def commands(kind: str = "audio") -> list[list[str]]:
    """What follows `uv run cpc` in the section's block."""
    block = re.search(r"```sh\n(.*?)```", own(kind), re.DOTALL)
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
    assert [words[0] for words in asked] == ["data", "pretrain", "monitor", "pretrain", "evaluate", "probe", "embed"]
    for words in asked:
        run(words, folder)
        capsys.readouterr()
    lines = (tmp_path / "runs/mine/bound.jsonl").read_text().splitlines()
    assert {json.loads(line)["split"] for line in lines} == {"train", "valid"}
    assert "mine" in (tmp_path / "report.html").read_text(encoding="utf-8")
    report = json.loads((tmp_path / "runs/mine/probe.json").read_text())
    assert report["tasks"]["speaker"]["protocol"]["classes"] == ["speaker0", "speaker1", "speaker2"]
    written = sorted(path.relative_to(tmp_path / "features").as_posix() for path in tmp_path.glob("features/**/*.npy"))
    assert written == sorted(f"speaker{number % 3}/{number}.npy" for number in range(30))
    assert np.load(tmp_path / "features/speaker0/0.npy").shape == (50, 8)


def test_a_folder_without_speakers_takes_the_options_named(folder: Path, tmp_path: Path) -> None:
    assert "`--data.sampler uniform`" in own("audio")
    index, pretrain = commands()[:2]
    assert index[-2:] == ["--speaker_level", "0"]
    run(index[:-2], folder)
    run([*pretrain, "--data.sampler", "uniform"], folder)
    assert (tmp_path / "runs/mine/model/config.json").exists()


@pytest.mark.slow
def test_every_command_works_from_a_folder_of_images_to_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "configs").symlink_to(REPOSITORY / "configs")
    monkeypatch.chdir(tmp_path)
    rng, folder = np.random.default_rng(0), tmp_path / "own"
    for number in range(80):
        path = folder / ("dark", "light")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 128, (70, 80, 3), np.uint8) + 127 * np.uint8(number % 2)
        Image.fromarray(pixels).save(path)
    asked = commands("images")
    assert [words[0] for words in asked] == ["pretrain", "evaluate", "probe", "picture", "embed"]
    for words in asked:
        main([str(folder) if word == "DIR" else word for word in words] + shlex.split(SMALLER_IMAGES[words[0]]))
        capsys.readouterr()
    report = json.loads((tmp_path / "runs/images/probe.json").read_text())
    assert report["tasks"]["class"]["protocol"]["classes"] == ["dark", "light"]
    assert report["tasks"]["class"]["label_efficiency"]["shares"] == [0.1, 0.5, 1.0]
    assert {path.name for path in (tmp_path / "pictures").iterdir()} >= {"patches.png", "neighbours.png", "map.png"}
    assert np.load(tmp_path / "features/dark/0.npy").shape == (7, 7, 8)


def test_every_command_works_from_a_folder_of_text_to_its_perplexity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "configs").symlink_to(REPOSITORY / "configs")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "own"
    folder.mkdir()
    lines = [" ".join(f"word{(start * k) % 61}" for k in range(1, 9)) for start in range(600)]
    (folder / "novel.txt").write_text("\n".join(lines), encoding="utf-8")
    asked = commands("text")
    assert [words[0] for words in asked] == ["pretrain", "evaluate"]
    for words in asked:
        main([str(folder) if word == "DIR" else word for word in words] + shlex.split(SMALLER_TEXT[words[0]]))
    assert "perplexity" in capsys.readouterr().out
    report = json.loads((tmp_path / "runs/text/bound.json").read_text())
    assert report["split"] == "test"
    assert 1 < report["bounds"][0]["perplexity"][0] < 500


def test_the_library_use_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [
        f"file {onset} {onset + 1} {phone} a b {speaker}" for onset, phone in enumerate("ppqp") for speaker in "st"
    ]
    Path("dev-clean.item").write_text("\n".join(["#file onset offset #phone prev-phone next-phone speaker", *lines]))
    starts, lengths = np.arange(8), np.full(8, 2)
    names = {"latents": torch.randn(300, 8), "queries": torch.randn(4, 8, requires_grad=True)}
    names |= {"positives": torch.randn(4, 8), "torch": torch, "cpc": cpc}
    names |= {"frames": np.random.default_rng(0).standard_normal((9, 4)), "starts": starts, "lengths": lengths}
    for document in ("README.md", "docs/library.md"):
        blocks = re.findall(r"```python\n(.*?)```", (REPOSITORY / document).read_text(encoding="utf-8"), re.DOTALL)
        assert blocks, document
        for block in blocks:
            if "onnxruntime" not in block:  # tests/test_export.py runs it
                exec(block, names)
    assert names["out"].latents.shape == names["out"].contexts.shape == (8, 128, 256)
    assert "bound" in names["exact"].reading
    assert all(error.num_triplets for error in names["errors"].values())


def test_every_document_that_is_linked_or_named_exists() -> None:
    folders = ("benchmarks", "configs", "cpc", "datasets", "docs", "tests")
    files = [*REPOSITORY.glob("*"), *(path for folder in folders for path in (REPOSITORY / folder).rglob("*"))]
    for file in [path for path in files if path.suffix in (".md", ".py", ".yaml", ".toml", ".c", ".h")]:
        text = file.read_text(encoding="utf-8")
        missing = [name for name in re.findall(r"docs/[\w/]+\.md", text) if not (REPOSITORY / name).exists()]
        if file.suffix == ".md":
            links = [link for link in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in link]
            missing += [link for link in links if not (file.parent / link).exists()]
        assert not missing, file
