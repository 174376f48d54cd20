"""`cpc doctor`: which parts of the environment work.

It imports nothing heavy of cpc, so that it still answers when torch does not.
"""

import ctypes
import importlib
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Literal, NamedTuple

from cpc.config.extras import DISTRIBUTION

SYNC = "uv sync --all-extras"
NECESSARY = ("torch", "torchvision", "torchaudio", "lightning", "tensorboard", "pillow")
OPTIONAL = {
    "plotly": "charts need it",
    "dash": "`cpc monitor` needs it",
    "scikit-image": "HOG features and the image quickstart need it",
}
MODULES = {"pillow": "PIL", "scikit-image": "skimage"}  # of packages that are imported by another name
AUDIO_FORMATS = ("WAV", "FLAC", "OGG", "MP3")
SCARCE_DISK_GIB = 2.0


class Check(NamedTuple):
    """One line of the report.

    Attributes:
        name: what was looked at.
        state: `ok`; `missing`, something optional that does not work; `broken`, something necessary that does not.
        detail: what was found, and what to do about it.
    """

    name: str
    state: Literal["ok", "missing", "broken"]
    detail: str


def main() -> None:
    """Print the report; exit status 1 if something necessary is broken."""
    checks = report()
    for check in checks:
        print(f"{check.state:8}{check.name:14}{check.detail}")
    broken = [check.name for check in checks if check.state == "broken"]
    if broken:
        print(f"\nbroken: {', '.join(broken)}")
        sys.exit(1)
    print("\neverything necessary works")


def report() -> list[Check]:
    """Look at every part of the environment; takes as long as importing torch and lightning does."""
    reinstall = f"install again: {SYNC} --reinstall"
    return [
        # An older Python never gets here: the package's metadata refuses it.
        look("python", lambda: f"{platform.python_version()}, {platform.system()} {platform.machine()}"),
        *(look(name, lambda name=name: package(name), reinstall) for name in NECESSARY),
        look("gpu", gpu, "everything runs on the CPU", is_necessary=False),
        look("C compiler", compiler, "a step of training takes longer: install gcc", is_necessary=False),
        look("audio files", audio_files, f"{SYNC} brings a library that can"),
        look("espeak-ng", espeak, f"`cpc data synthesize` and `cpc quickstart` need it: {SYNC}", is_necessary=False),
        *(
            look(name, lambda name=name: package(name), f"{purpose}: {SYNC}", is_necessary=False)
            for name, purpose in OPTIONAL.items()
        ),
        look("disk", lambda: disk(Path.cwd()), "free some, or choose another folder with --run_dir"),
    ]


def look(name: str, find: Callable[[], str], advice: str = "", *, is_necessary: bool = True) -> Check:
    """What `find` found; or why it failed (a broken native library may raise anything) and what to do."""
    try:
        return Check(name, "ok", find())
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        reason = reason if isinstance(error, ValueError) else f"{type(error).__name__}: {reason}"
        return Check(name, "broken" if is_necessary else "missing", f"{reason}; {advice}")


def package(name: str) -> str:
    """The version of a package that imports, within the range of cpc's own metadata: pyproject.toml is the source."""
    importlib.import_module(MODULES.get(name, name))
    from packaging.requirements import Requirement

    requirements = [Requirement(line) for line in metadata.requires(DISTRIBUTION) or []]
    supported = next(requirement.specifier for requirement in requirements if requirement.name == name)
    version = metadata.version(name)
    if not supported.contains(version, prereleases=True):
        raise ValueError(f"{version}, but the set that works together has {supported}")
    return f"{version} ({supported})"


def gpu() -> str:
    """The names of CUDA's devices."""
    import torch

    if not torch.cuda.is_available():
        raise ValueError("no CUDA device")
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return f"CUDA {torch.version.cuda}: {', '.join(names)}"


def compiler() -> str:
    """Where the C compiler is that `cpc.native.compiled` would call."""
    name = shlex.split(os.environ.get("CC", "cc"))[0]
    found = shutil.which(name)
    if found is None:
        raise ValueError(f"there is no {name}")
    return found


def audio_files() -> str:
    """The formats that can be read."""
    import soundfile

    found = f"soundfile {soundfile.__version__}, {soundfile.__libsndfile_version__}"
    absent = [name for name in AUDIO_FORMATS if name not in soundfile.available_formats()]
    if absent:
        raise ValueError(f"{found} cannot read {', '.join(absent)}")
    return f"{found}: {', '.join(AUDIO_FORMATS)}"


def espeak() -> str:
    """The version of the speech synthesiser's library, if it loads."""
    version = ctypes.CDLL(str(importlib.import_module("espeakng_loader").get_library_path())).espeak_Info
    version.restype = ctypes.c_char_p
    return f"{version(None).decode()} (espeakng-loader {metadata.version('espeakng-loader')})"


def disk(folder: Path) -> str:
    """The space that is left."""
    found = f"{shutil.disk_usage(folder).free / 2**30:.1f} GiB free in the current folder"
    if shutil.disk_usage(folder).free < SCARCE_DISK_GIB * 2**30:
        raise ValueError(found)
    return found


if __name__ == "__main__":
    main()
