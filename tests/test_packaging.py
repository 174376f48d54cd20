"""What is shipped and what is tracked."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import cpc
from cpc.config.extras import DISTRIBUTION
from cpc.pretrained import FOLDER, shipped_names

REPOSITORY = Path(__file__).parents[1]
LOCK_FILES = re.compile(r"(^|/)(uv\.lock|poetry\.lock|Pipfile\.lock|pylock.*\.toml|package-lock\.json)$")
# Where checkouts and home folders lie on somebody's machine, never on everybody's.
MACHINE_PATHS = re.compile(r"(?<![\w.~/-])/(?:home|root|Users|work|mnt)/[\w.-]")


@pytest.fixture(scope="module")
def tracked() -> list[str]:
    """Files in the repository, or about to be: everything that git does not ignore."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        done = subprocess.run(listing, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"not a git checkout: {error}")
    return [name for name in done.stdout.split("\0") if (REPOSITORY / name).is_file()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    uv = os.environ.get("UV") or shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    # Offline: the build backend lies in uv's cache since cpc itself was installed.
    build = [uv, "build", "--wheel", "--offline", "--quiet", "--out-dir", str(folder), str(REPOSITORY)]
    done = subprocess.run(build, capture_output=True, text=True)
    if done.returncode and re.search("offline|network|cache", done.stderr):
        pytest.skip(f"the build backend is not in uv's cache: {done.stderr.strip()[-300:]}")
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_holds_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    shipped = {name for name in wheel.namelist() if ".dist-info/" not in name}
    files = [path for path in (REPOSITORY / "cpc").rglob("*") if path.suffix in (".py", ".c", ".h")]
    sources = {str(path.relative_to(REPOSITORY).as_posix()) for path in files}
    assert sources <= shipped
    assert all(name.startswith("cpc/") for name in shipped)
    assert not [name for name in shipped if re.search(r"(^|/)(datasets|tests|__pycache__)(/|$)", name)]


def test_the_wheel_carries_the_models_and_stays_small(wheel: zipfile.ZipFile) -> None:
    assert shipped_names()
    for name in shipped_names():
        for file in ("config.json", "model.safetensors", "README.md"):
            assert wheel.read(f"cpc/pretrained/{name}/{file}") == (FOLDER / name / file).read_bytes()
    assert Path(wheel.filename).stat().st_size < 25e6


def test_the_wheel_carries_licence_and_command(wheel: zipfile.ZipFile) -> None:
    (licence,) = [name for name in wheel.namelist() if name.endswith("/licenses/LICENSE")]
    assert wheel.read(licence) == (REPOSITORY / "LICENSE").read_bytes()
    assert b"Apache License" in wheel.read(licence)
    (entry_points,) = [name for name in wheel.namelist() if name.endswith("/entry_points.txt")]
    assert "cpc = cpc.cli:main" in wheel.read(entry_points).decode()


def test_the_wheel_is_typed_and_named_apart_from_another_project(wheel: zipfile.ZipFile) -> None:
    """`cpc` on the package index is somebody else's."""
    assert "cpc/py.typed" in wheel.namelist()
    (metadata,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    assert f"\nName: {DISTRIBUTION}\n" in wheel.read(metadata).decode()
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == DISTRIBUTION
    assert project["version"] == cpc.__version__
    assert f"## {cpc.__version__}" in (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")


USES = {  # of each extra, what a user of it alone would do; by what it ends otherwise
    "speech": ("from cpc.data.synthetic.espeak import Espeak; Espeak()", "espeakng_loader"),
    "dashboard": ("import cpc.monitor.app, cpc.pages.html", "dash"),
    "image": ("from cpc.data.synthetic.photographs import PHOTOGRAPHS; from skimage.feature import hog", "skimage"),
    "agents": ("import cpc.agents.training, gymnasium, minigrid, vizdoom", "vizdoom"),
    "frames": ("from cpc.data.frames.environments import *; import ale_py", "ale_py"),
    "onnx": ("import cpc.interop.export, onnx, onnxruntime, onnxscript", "onnx"),
    "datasets": ("import cpc.interop.hub_datasets, datasets", "datasets"),
    "ray": ("import cpc.on_ray.launch; from cpc.on_ray.spread import import_ray; import_ray()", "ray"),
    "text": ("from cpc.data.text.vocabulary import byte_pairs; byte_pairs('ab', [])", "tokenizers"),
    "hub": ("import cpc.interop.hub; cpc.interop.hub.hub()", "huggingface_hub"),
    "signals": ("import cpc.data.signals.recordings, edfio, pyarrow.parquet, seglearn, wfdb", "edfio"),
}


def test_every_extra_has_a_use() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(project["optional-dependencies"]) == set(USES)


@pytest.mark.slow
@pytest.mark.parametrize("extra", [None, *USES])
def test_the_wheel_works_with_each_extra_alone(wheel: zipfile.ZipFile, tmp_path: Path, extra: str | None) -> None:
    """In an environment of its own; without extras everything imports that needs none, and the rest is missing."""
    python = tmp_path / "bin" / "python"
    uv = os.environ.get("UV") or shutil.which("uv")
    wanted = str(wheel.filename) + (f"[{extra}]" if extra else "")
    for command in (
        ["venv", "-q", "-p", sys.executable, str(tmp_path)],
        ["pip", "install", "-q", "-p", str(python), wanted],
    ):
        subprocess.run([uv, *command], check=True, timeout=600, cwd=tmp_path)

    def run(*command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    if extra is not None:
        run(str(python), "-W", "ignore", "-c", USES[extra][0])
        return
    assert "everything necessary works" in run(str(tmp_path / "bin" / "cpc"), "doctor")
    missing = "import importlib.util as i; print([n for n in {!r} if i.find_spec(n)])"
    assert run(str(python), "-c", missing.format([module for _, module in USES.values()])) == "[]\n"
    train = "import torch, cpc; m = cpc.CPC(cpc.encoders.AudioEncoder(dim=8), cpc.contexts.GRU(dim=8), cpc.predictors"
    run(str(python), "-c", train + ".Bilinear(num_steps=2)); m.loss(torch.randn(4, 3200)).loss.backward()")


def test_datasets_is_no_package() -> None:
    folder = REPOSITORY / "datasets"
    assert (folder / "fsdd" / "card.md").is_file()
    assert not list(folder.rglob("__init__.py")), "a package named datasets would shadow Hugging Face's"
    for corpus in (path for path in folder.iterdir() if path.is_dir()):
        assert {path.name for path in corpus.iterdir() if path.name != "__pycache__"} >= {"card.md", "prepare.py"}


def test_no_lock_file_is_tracked(tracked: list[str]) -> None:
    assert not [name for name in tracked if LOCK_FILES.search(name)]


def test_no_tracked_file_knows_a_machine(tracked: list[str]) -> None:
    found = []
    for name in tracked:
        text = (REPOSITORY / name).read_bytes().decode("utf-8", errors="ignore")
        for number, line in enumerate(text.splitlines(), start=1):
            if MACHINE_PATHS.search(line):
                found.append(f"{name}:{number}: {line.strip()[:120]}")
    assert not found, "\n".join(found)


def test_supported_versions_are_bounded_above() -> None:
    """torch and its companions break each other across minor versions: nobody should meet that."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for name in ("torch", "torchvision", "torchaudio", "lightning", "jsonargparse"):
        (requirement,) = [line for line in project["dependencies"] if re.match(rf"{name}\b(?!-)", line)]
        assert ">=" in requirement
        assert ",<" in requirement
