"""README's commands and code as they stand there, on small data; the documents that files name exist."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from shown import REPOSITORY, SMALLER, command_blocks, commands_in, run

import cpc
from cpc.data.store.untrusted import read_yaml
from cpc.pretraining.pretrain import _merge


def own(kind: str) -> str:
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    return readme.split(f"## Your own {kind}")[1].split("\n## ")[0]


def commands(kind: str = "audio") -> list[list[str]]:
    block = re.search(r"```sh\n(.*?)```", own(kind), re.DOTALL)
    assert block
    return commands_in(block[1])


def for_device(word: str, device: str) -> list[str]:
    """Return the options that let a command compute on a GPU; the others find it."""
    options = {"pretrain": ["--trainer.accelerator", "gpu", "--trainer.max_steps", "20"], "embed": ["--device", "cuda"]}
    return options.get(word, []) if device == "cuda" else []


@pytest.mark.usefixtures("unchecked_types")  # as readers run
def test_every_command_works_from_a_plain_folder_to_features(
    own_audio: Path, tmp_path: Path, device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = commands()
    assert [words[0] for words in asked] == ["data", "pretrain", "monitor", "pretrain", "evaluate", "probe", "embed"]
    for words in asked:
        run(words, {"DIR": str(own_audio)}, *for_device(words[0], device))
        capsys.readouterr()
    lines = (tmp_path / "runs/mine/bound.jsonl").read_text().splitlines()
    assert {json.loads(line)["split"] for line in lines} == {"train", "valid"}
    assert "mine" in (tmp_path / "report.html").read_text(encoding="utf-8")
    report = json.loads((tmp_path / "runs/mine/probe.json").read_text())
    assert report["tasks"]["speaker"]["protocol"]["classes"] == ["speaker0", "speaker1", "speaker2"]
    written = sorted(path.relative_to(tmp_path / "features").as_posix() for path in tmp_path.glob("features/**/*.npy"))
    assert written == sorted(f"speaker{number % 3}/{number}.npy" for number in range(60))
    assert np.load(tmp_path / "features/speaker0/0.npy").shape == (50, 8)


def test_a_folder_without_speakers_takes_the_options_named(own_audio: Path, tmp_path: Path) -> None:
    assert "`--data.sampler uniform`" in own("audio")
    index, pretrain = commands()[:2]
    assert index[-2:] == ["--speaker_level", "0"]
    run(index[:-2], {"DIR": str(own_audio)})
    run([*pretrain, "--data.sampler", "uniform"], {"DIR": str(own_audio)})
    assert (tmp_path / "runs/mine/model/config.json").exists()


@pytest.mark.slow
def test_every_command_works_from_a_folder_of_images_to_features(
    own_images: Path, tmp_path: Path, device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = commands("images")
    assert [words[0] for words in asked] == ["pretrain", "evaluate", "probe", "embed"]
    for words in asked:
        run(words, {"DIR": str(own_images)}, *for_device(words[0], device))
        capsys.readouterr()
    report = json.loads((tmp_path / "runs/images/probe.json").read_text())
    assert report["tasks"]["class"]["protocol"]["classes"] == ["dark", "light"]
    assert report["tasks"]["class"]["label_efficiency"]["shares"] == [0.1, 0.5, 1.0]
    assert np.load(tmp_path / "features/dark/0.npy").shape == (7, 7, 8)


def test_every_command_works_from_text_to_its_perplexity(
    beside_configs: Path, device: str, capsys: pytest.CaptureFixture
) -> None:
    folder = beside_configs / "own"
    folder.mkdir()
    lines = [" ".join(f"word{(start * k) % 61}" for k in range(1, 9)) for start in range(600)]
    (folder / "novel.txt").write_text("\n".join(lines), encoding="utf-8")
    asked = commands("text")
    assert [words[0] for words in asked] == ["pretrain", "evaluate"]
    for words in asked:
        run(words, {"DIR": str(folder)}, *for_device(words[0], device))
    assert "perplexity" in capsys.readouterr().out
    report = json.loads((beside_configs / "runs/text/bound.json").read_text())
    assert report["split"] == "test"
    assert 1 < report["bounds"][0]["perplexity"][0] < 500


def test_the_commands_for_frames_are_those_of_the_data_page() -> None:
    assert commands("frames") == command_blocks("docs/data.md")[-1]


def test_the_library_use_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [f"{s} {onset} {onset + 1} {phone} a b {s}" for onset, phone in enumerate("ppqp") for s in "st"]
    Path("dev-clean.item").write_text("\n".join(["#file onset offset #phone prev-phone next-phone speaker", *lines]))
    starts, lengths = np.arange(8), np.full(8, 2)
    names = {"latents": torch.randn(300, 8), "queries": torch.randn(4, 8, requires_grad=True)}
    names |= {"positives": torch.randn(4, 8), "torch": torch, "cpc": cpc}
    names |= {"frames": np.random.default_rng(0).standard_normal((9, 4)), "starts": starts, "lengths": lengths}
    for document in ("README.md", "docs/library.md"):
        blocks = re.findall(r"```python\n(.*?)```", (REPOSITORY / document).read_text(encoding="utf-8"), re.DOTALL)
        assert blocks, document
        for block in blocks:
            # tests/interop/test_export.py runs the first, the test below the second
            if "onnxruntime" not in block and block not in notebook():
                exec(block, names)
    assert names["out"].latents.shape == names["out"].contexts.shape == (8, 128, 256)
    assert "bound" in names["exact"].reading
    assert all(error.num_triplets for error in names["errors"].values())


def notebook() -> list[str]:
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    section = readme.split("## From a notebook")[1].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked_types")  # as readers run
@pytest.mark.parametrize(("number", "source"), [(0, "own_audio"), (1, "own_images"), (2, "beside_configs")])
def test_the_lines_for_a_notebook_end_in_a_table_of_probes(
    number: int, source: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_smaller(path: str) -> Any:
        """Read a config with the options that make it small enough for a test."""
        changes: dict[str, Any] = {}
        words = SMALLER[path].split()
        for option, value in zip(words[::2], words[1::2], strict=True):
            name = re.sub(r"^data\.", "data.init_args.", option.removeprefix("--"))
            change: Any = yaml.safe_load(value)
            for key in reversed(name.split(".")):
                change = {key: change}
            changes = _merge(changes, change)
        return _merge(read_yaml(path), changes)

    folder, rng = request.getfixturevalue(source), np.random.default_rng(0)
    monkeypatch.setattr("cpc.pretraining.pretrain.read_yaml", read_smaller)
    monkeypatch.setattr("cpc.probes.report.DEFAULT_SECONDS", 1.0)  # as `--supervised_seconds 1` of the commands
    people, y = np.arange(24) % 6, np.arange(24) // 6 % 2
    X = rng.standard_normal((24, 400, 3)).astype(np.float32) * (1 + y[:, None, None])
    names: dict[str, Any] = {"cpc": cpc, "people": people, "y": y, "X": X}
    block = notebook()[number].replace("DIR", str(folder))
    lines = [line for line in block.splitlines() if line and not line.startswith("import")]
    assert len(lines) <= 5
    *before, last = block.replace('cpc.probe(run, "', 'report = cpc.probe(run, "').splitlines()
    exec("\n".join([*before, last]), names)
    report, run = names["report"], names["run"]
    (task,) = report["tasks"].values()
    assert {"cpc", "random", "majority"} <= set(task["results"])
    assert report._repr_html_().count("<table>") >= 1
    assert report.figure().axes[0].patches  # a bar for each feature
    assert "log N - L in nats" in run._repr_html_()
    assert len(run.figure().axes) == len(run.to_dict()["bounds"])


def test_the_tabs_of_the_site_show_commands_of_readme() -> None:
    tabs = re.sub(r" \\\n +", " ", (REPOSITORY / "docs" / "index.md").read_text(encoding="utf-8"))
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    lines = [line.strip() for line in tabs.splitlines() if re.match(r"    (uv run|from|features)", line)]
    assert len(lines) == 7
    assert not [line for line in lines if line not in readme]


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
