"""`cpc doctor`: a report on which parts of the environment work.

The module imports no heavy module of cpc, so it works even if torch does not.
"""

import ctypes
import importlib
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Literal

from cpc.config.argument_rules import Range
from cpc.config.extras import DISTRIBUTION

SYNC = "uv sync --all-extras"
NECESSARY = ("torch", "torchvision", "torchaudio", "lightning", "tensorboard", "pillow")
OPTIONAL = {
    "plotly": "`cpc monitor` needs it",
    "dash": "`cpc monitor` needs it",
    "scikit-image": "HOG features and the image quickstart need it",
}
MODULES = {"pillow": "PIL", "scikit-image": "skimage"}  # import names that differ from the name of the package
AUDIO_FORMATS = ("WAV", "FLAC", "OGG", "MP3")
SCARCE_DISK_GIB = 2.0
# The state of a part, and the result of its check, or how to fix it; missing: an optional part does not work.
Check = tuple[Literal["ok", "missing", "broken"], str]


def main() -> None:
    """Print the report; exit with status 1 if a necessary part is broken."""
    checks = report()
    for name, (state, detail) in checks.items():
        print(f"{state:8}{name:14}{detail}")
    if broken := [name for name, (state, _) in checks.items() if state == "broken"]:
        print(f"\nbroken: {', '.join(broken)}")
        sys.exit(1)
    print("\neverything necessary works")


def report() -> dict[str, Check]:
    """Check every part of the environment. The check takes as long as the imports of torch and lightning."""
    reinstall = f"install again: {SYNC} --reinstall"
    needed_for_speech = f"`cpc data synthesize` and `cpc quickstart` need it: {SYNC}"
    return {
        # The metadata of the package excludes older versions of Python.
        "python": run_check(lambda: f"{platform.python_version()}, {platform.system()} {platform.machine()}"),
        **{name: run_check(partial(package, name), reinstall) for name in NECESSARY},
        "gpu": run_check(gpu, "everything runs on the CPU", is_necessary=False),
        "C compiler": run_check(compiler, "a step of training takes longer: install gcc", is_necessary=False),
        "audio files": run_check(audio_files, f"install a library that can read them: {SYNC}"),
        "espeak-ng": run_check(espeak, needed_for_speech, is_necessary=False),
        **{n: run_check(partial(package, n), f"{use}: {SYNC}", is_necessary=False) for n, use in OPTIONAL.items()},
        "disk": run_check(lambda: disk(Path.cwd()), "free some, or choose another folder with --run_dir"),
    }


def run_check(find: Callable[[], str], advice: str = "", *, is_necessary: bool = True) -> Check:
    """Return the result of `find`, or the reason of its failure with `advice`. Native libraries may raise any error."""
    try:
        return "ok", find()
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        reason = reason if isinstance(error, ValueError) else f"{type(error).__name__}: {reason}"
        return "broken" if is_necessary else "missing", f"{reason}; {advice}"


def package(name: str) -> str:
    """Import a package, and return its version if the metadata of cpc (from pyproject.toml) allows this version."""
    importlib.import_module(MODULES.get(name, name))
    from packaging.requirements import Requirement

    requirements = [Requirement(line) for line in metadata.requires(DISTRIBUTION) or []]
    supported = next(requirement.specifier for requirement in requirements if requirement.name == name)
    version = metadata.version(name)
    if not supported.contains(version, prereleases=True):
        raise ValueError(f"{version}, but cpc needs {supported}")
    return f"{version} ({supported})"


def gpu() -> str:
    """Return the version of CUDA and the names of its devices."""
    import torch

    if not torch.cuda.is_available():
        raise ValueError("no CUDA device")
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return f"CUDA {torch.version.cuda}: {', '.join(names)}"


def compiler() -> str:
    """Return the path of the C compiler that `cpc.native.compiled` calls."""
    name = shlex.split(os.environ.get("CC", "cc"))[0]
    path = shutil.which(name)
    if path is None:
        raise ValueError(f"there is no {name}")
    return path


def audio_files() -> str:
    """Return the version of soundfile and the formats that it can read."""
    import soundfile

    version = f"soundfile {soundfile.__version__}, {soundfile.__libsndfile_version__}"
    absent = [name for name in AUDIO_FORMATS if name not in soundfile.available_formats()]
    if absent:
        raise ValueError(f"{version} cannot read {', '.join(absent)}")
    return f"{version}: {', '.join(AUDIO_FORMATS)}"


def espeak() -> str:
    """Load the library of the speech synthesiser and return its version."""
    version = ctypes.CDLL(str(importlib.import_module("espeakng_loader").get_library_path())).espeak_Info
    version.restype = ctypes.c_char_p
    return f"{version(None).decode()} (espeakng-loader {metadata.version('espeakng-loader')})"


def disk(folder: Path) -> str:
    """Return the free space of the disk that holds `folder`."""
    free_gib = round(shutil.disk_usage(folder).free / 2**30, 1)
    Range(SCARCE_DISK_GIB).check("GiB free in the current folder", free_gib)
    return f"{free_gib} GiB free in the current folder"
