"""The pages of docs/: commands are accepted, snippets run, the tutorial works, and the site has every public name.

tests/test_how_to.py runs the commands of the how-to pages.
"""

import importlib.util
import re
import subprocess
import sys
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from shown import PAGES, REPOSITORY, blocks, commands, in_prose, load, run

import cpc
import cpc.pretraining.command
from cpc.cli import COMMANDS, main
from cpc.config.options import Options
from cpc.data import Audio, Frames, Images, Sentences, Signals, Text

DATA_OPTIONS = {field.name for kind in (Audio, Frames, Images, Sentences, Signals, Text) for field in fields(kind)}


def test_commands_are_found() -> None:
    assert len(commands("docs/tutorial.md")) == 7
    assert sum(len(commands(page)) for page in PAGES) > 40
    assert ["data", "index", "NOISE", "--valid_share", "0", "--test_share", "0"] in in_prose("docs/data.md")


def test_code_fits_its_box() -> None:
    """Wider code scrolls sideways on the site; indented blocks, such as those of tabs, too."""
    for page in sorted((REPOSITORY / "docs").rglob("*.md")):
        found = re.findall(r"^( *)```\w*\n(.*?)^\1```", page.read_text(encoding="utf-8"), re.DOTALL | re.M)
        wide = [line for _, block in found for line in block.splitlines() if len(line) > 88]
        assert not wide, f"{page.name}: more than 88 columns: {wide[0]}"


def test_tests_benchmarks_and_scripts_that_pages_name_are_there() -> None:
    """Their commands take minutes to hours; decisions also tell of what is gone."""
    pages = "\n".join((REPOSITORY / page).read_text(encoding="utf-8") for page in PAGES if "decisions" not in page)
    chosen = [word for words in re.findall(r'-k "?([\w ]+)"?`', pages) for word in words.split(" or ")]
    tests = "\n".join(file.read_text(encoding="utf-8") for file in (REPOSITORY / "tests").rglob("test_*.py"))
    assert len(chosen) > 10
    assert not [word for word in chosen if not re.search(rf"def test_\w*{word}", tests)]
    modules = set(re.findall(r"python -m (benchmarks\.\w+)", pages))
    scripts = set(re.findall(r"(?:python|pytest) (\w+/[\w/]+\.py)", pages))
    assert {"benchmarks.soak", "benchmarks.loader"} <= modules
    assert {"datasets/an4/prepare.py", "tests/pretraining/test_command.py"} <= scripts
    assert not [name for name in modules if importlib.util.find_spec(name) is None]
    assert not [name for name in scripts if not (REPOSITORY / name).is_file()]


@pytest.mark.parametrize("code", [0, 2, 143])
def test_slurm_requeues_a_run_that_ran_out_of_time(tmp_path: Path, code: int) -> None:
    """The recipe, with a SLURM that notes what it is asked for."""
    (script,) = [block for block in blocks("docs/scale.md", "sh") if "#SBATCH" in block]
    for name, ends_with in (("srun", code), ("scontrol", 0)):
        (tmp_path / name).write_text(f'#!/bin/bash\necho {name} "$@" >> asked\nexit {ends_with}\n')
        (tmp_path / name).chmod(0o755)
    (tmp_path / "runs/960/checkpoints").mkdir(parents=True)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7"}
    for _ in range(2):
        done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment)
        assert done.returncode == code
        (tmp_path / "runs/960/checkpoints/last.ckpt").touch()
    asked = (tmp_path / "asked").read_text().splitlines()
    assert ["last" in line for line in asked if line.startswith("srun")] == [False, True]
    assert [line for line in asked if line.startswith("scontrol")] == ["scontrol requeue 7"] * (2 * (code == 143))


ALL = [(page, words) for page in PAGES for words in commands(page)]
# But for decisions, which tell of options.
ALL += [(page, words) for page in [*PAGES, "README.md"] if "decisions" not in page for words in in_prose(page)]
# The corpora of docs/results are not here, and take hours; a job of SLURM has many machines. All others are run.
NOT_RUN = [
    words
    for page, words in ALL
    if words[0] == "pretrain" and (page.startswith("docs/results") or "--trainer.num_nodes" in words)
]


@pytest.mark.parametrize(("page", "words"), [case for case in ALL if case[1][0] != "pretrain"])
def test_a_command_is_accepted(page: str, words: list[str]) -> None:
    """At once, run or not: tests/test_how_to.py runs those of blocks. Options of the data of a model, which is not
    there, are those of some data.
    """
    num_words = 2 if words[0] == "data" else 1
    module, _, function = COMMANDS[" ".join(words[:num_words])][0].partition(":")
    options = Options(getattr(import_module(module), function))
    _, unknown = options.parser.parse_known_args(words[num_words:])
    names = [word.removeprefix("--") for word in unknown if word.startswith("--")]
    assert set(names) <= (DATA_OPTIONS if options.takes_more else set()), unknown


@pytest.mark.slow
@pytest.mark.parametrize("words", NOT_RUN)
def test_a_pretraining_is_accepted(words: list[str], beside_configs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Config and options build a model, data and a trainer; nothing is trained."""
    begun: list[Any] = []
    monkeypatch.setattr(cpc.pretraining.command, "_fit", lambda *given: begun.append(given))
    monkeypatch.setattr(cpc.pretraining.command, "_checkpoint_to_continue", lambda *given: (None, 0))
    monkeypatch.setattr(cpc.pretraining.command, "must_start_ranks", lambda _: False)
    main([*words, "--run_dir", "runs/here"])
    assert len(begun) == 1


@pytest.mark.slow
def test_the_tutorial_works_from_a_folder_to_features(own_audio: Path, tmp_path: Path) -> None:
    quickstart, *others = commands("docs/tutorial.md")
    assert quickstart == ["quickstart"]
    for words in others:
        run(words, {"DIR": str(own_audio)})
    assert (tmp_path / "report.html").is_file()
    assert len(list(tmp_path.glob("features/speaker?/*.npy"))) == 60
    (snippet,) = blocks("docs/tutorial.md", "python")
    names: dict[str, Any] = {}
    exec(compile(snippet, "docs/tutorial.md", "exec"), names)
    assert names["latents"].shape == (2, 100, 8)


@pytest.mark.slow
def test_the_snippet_of_signals_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (snippet,) = blocks("docs/signals.md", "python")
    assert "max_steps=500" in snippet
    names: dict[str, Any] = {
        "X": np.random.default_rng(0).normal(size=(40, 200, 3)),
        "subjects": [f"p{number % 8}" for number in range(40)],
    }
    exec(compile(snippet.replace("max_steps=500", "max_steps=2"), "docs/signals.md", "exec"), names)
    assert len(names["features"]) == 40
    assert names["pretrained"].bound_.split == "valid"
    assert cpc.load_pretrained("runs/mine/model").encoder.channels == 3


@pytest.fixture(scope="module")
def site() -> ModuleType:
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("the group docs is not installed: uv run --all-extras --group docs pytest")
    return load("docs/site.py")


def test_what_pages_import_is_on_the_site(site: ModuleType) -> None:
    snippets = "\n".join(snippet for page in [*PAGES, "README.md"] for snippet in blocks(page, "python"))
    imports = re.findall(r"^from (cpc[\w.]*) import ([\w, ]+)", snippets, re.M)
    named = {(place, name.split()[0]) for place, names in imports for name in names.split(",")}
    assert ("cpc.probes.abx", "abx_errors") in named
    homes = {home for package in site.PUBLIC for home in site.public_names(package).values()}
    found = {f"{place}.{name}": getattr(import_module(place), name) for place, name in named}
    missing = [name for name, each in found.items() if f"{each.__module__}.{each.__qualname__}" not in homes]
    assert not missing
    assert {"cpc.interop.hub_datasets.download_dataset", "cpc.data.audio.items.write_items"} <= homes


@pytest.mark.slow
def test_the_site_has_every_public_name(tmp_path: Path, site: ModuleType) -> None:
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(build, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {f"cpc.{name}" for name in cpc._SUBPACKAGES} <= set(site.PUBLIC)
    for package in site.PUBLIC:
        page = (tmp_path / "reference" / package / "index.html").read_text(encoding="utf-8")
        missing = [home for home in site.public_names(package).values() if f'id="{home}"' not in page]
        assert not missing, f"{package}: {missing}"
        assert len(site.public_names(package)) > 0
