"""`cpc doctor`: which parts of the environment work.

Stands beside the flow and imports nothing of it, so that it still answers when torch does not.
"""

import ctypes
import importlib
import os
import platform
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

SYNC = "uv sync --all-extras"
# glibc reads these as plain integers: "4G" would be taken for 4 bytes, and every block would be mapped anew.
PINNED_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(4 << 30), "MALLOC_TRIM_THRESHOLD_": str(16 << 30)}
NECESSARY = ("torch", "torchvision", "torchaudio", "lightning", "tensorboard")
CPU_FLAGS = ("avx512f", "avx512_bf16", "amx_bf16")
AUDIO_FORMATS = ("WAV", "FLAC", "OGG", "MP3")
SCARCE_DISK_GIB = 2.0


@dataclass(frozen=True)
class Check:
    """One line of the report.

    Attributes:
        name: what was looked at.
        state: `ok`; `missing`, something optional that is not there; `broken`, something that does not work.
        detail: what was found.
        advice: what to type or change, where there is something to do.
        is_necessary: whether `broken` here means that cpc cannot work.
    """

    name: str
    state: Literal["ok", "missing", "broken"]
    detail: str
    advice: str = ""
    is_necessary: bool = True

    def __str__(self) -> str:
        return f"{self.state:8}{self.name:14}{self.detail}" + (f"; {self.advice}" if self.advice else "")


def main() -> None:
    """Print the report; exit status 1 if something necessary is broken."""
    checks = report()
    print(*checks, sep="\n")
    broken = [check.name for check in checks if check.state == "broken" and check.is_necessary]
    if broken:
        print(f"\nbroken: {', '.join(broken)}")
        sys.exit(1)
    print("\neverything necessary works")


def report() -> list[Check]:
    """Look at every part of the environment; takes as long as importing torch and lightning does."""
    return [
        _python(),
        *(_package(name) for name in NECESSARY),
        _guarded("threads", _threads),
        _cpu(Path("/proc/cpuinfo")),
        _guarded("gpu", _gpu),
        _allocator(os.environ, platform.libc_ver()[0]),
        _guarded("audio files", _audio_files),
        _espeak(),
        _optional("plotly"),
        _optional("dash"),
        _package("pillow", "PIL"),
        _optional("scikit-image", "skimage", purpose="HOG features and the image quickstart need it"),
        _disk(Path.cwd()),
    ]


def _guarded(name: str, look: Callable[[], Check]) -> Check:
    """A broken native library raises anything from ImportError to OSError: the report must go on."""
    try:
        return look()
    except Exception as error:
        return Check(name, "broken", _in_one_line(error), f"install again: {SYNC} --reinstall")


def _in_one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _python() -> Check:
    # An older Python never gets here: the package's metadata refuses it.
    return Check("python", "ok", f"{platform.python_version()}, {platform.system()} {platform.machine()}")


def _supported(name: str) -> str:
    """The range that cpc's own metadata asks for, such as `<2.15,>=2.14.1`: pyproject.toml is the only source."""
    from packaging.requirements import Requirement

    requirements = [Requirement(line) for line in metadata.requires("cpc") or []]
    return next(str(requirement.specifier) for requirement in requirements if requirement.name == name)


def _package(name: str, module: str | None = None) -> Check:
    """Whether a package imports, by a module of another name if that is given, in a version that cpc works with."""

    def look() -> Check:
        from packaging.specifiers import SpecifierSet

        version = importlib.import_module(module or name).__version__
        supported = SpecifierSet(_supported(name))
        if not supported.contains(version, prereleases=True):
            return Check(name, "broken", f"{version}, but the set that works together has {supported}", SYNC)
        return Check(name, "ok", f"{version} ({supported})")

    return _guarded(name, look)


def _threads() -> Check:
    import torch

    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    num_threads = torch.get_num_threads()
    detail = f"{num_threads} for torch, {num_cores} cores to run on"
    if num_threads > num_cores:
        return Check("threads", "ok", detail, f"slower than need be: export OMP_NUM_THREADS={num_cores}")
    return Check("threads", "ok", detail)


def _cpu(cpuinfo: Path) -> Check:
    """AMX multiplies bfloat16 several times faster than float32; the other flags do not tell what is faster."""
    if not cpuinfo.is_file():
        return Check("cpu", "ok", ", ".join(f"{flag} unknown" for flag in CPU_FLAGS))
    lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    flags = next((line.split(":", 1)[1].split() for line in lines if line.startswith("flags")), None)
    if flags is None:  # other architectures list other words
        return Check("cpu", "ok", ", ".join(f"{flag} unknown" for flag in CPU_FLAGS))
    detail = ", ".join(f"{flag} {'yes' if flag in flags else 'no'}" for flag in CPU_FLAGS)
    advice = "whether bfloat16 trains faster than float32 no flag tells: cpc quickstart times both and prints it"
    return Check("cpu", "ok", detail, advice if "avx512_bf16" in flags or "amx_bf16" in flags else "")


def _gpu() -> Check:
    import torch

    if not torch.cuda.is_available():
        return Check("gpu", "missing", "no CUDA device, everything runs on the CPU", is_necessary=False)
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return Check("gpu", "ok", f"CUDA {torch.version.cuda}: {', '.join(names)}")


def _allocator(environment: Mapping[str, str], libc: str) -> Check:
    """Large tensors mapped and unmapped at every step cost page faults, up to half of a step's time on the CPU."""
    preloaded = environment.get("LD_PRELOAD", "")
    replacement = next((name for name in ("jemalloc", "tcmalloc", "mimalloc") if name in preloaded), None)
    if replacement:
        return Check("allocator", "ok", f"{replacement} (LD_PRELOAD)")
    if libc != "glibc":
        return Check("allocator", "ok", "not glibc: nothing to set")
    pin = "export " + " ".join(f"{name}={value}" for name, value in PINNED_ALLOCATOR.items())
    given = {name: environment[name] for name in PINNED_ALLOCATOR if name in environment}
    detail = ", ".join(f"{name}={value}" for name, value in given.items())
    if not all(value.isdecimal() for value in given.values()):
        advice = f"glibc reads plain bytes and ignores suffixes: {pin}"
        return Check("allocator", "broken", detail, advice, is_necessary=False)
    if given.keys() == PINNED_ALLOCATOR.keys():
        return Check("allocator", "ok", f"glibc, {detail}")
    detail = f"glibc, {detail or 'not pinned'}: the commands of cpc keep freed memory by themselves"
    return Check("allocator", "ok", detail, f"programs of your own are faster on the CPU after: {pin}")


def _audio_files() -> Check:
    import soundfile

    absent = [name for name in AUDIO_FORMATS if name not in soundfile.available_formats()]
    detail = f"soundfile {soundfile.__version__}, {soundfile.__libsndfile_version__}"
    if absent:
        return Check(
            "audio files", "broken", f"{detail} cannot read {', '.join(absent)}", f"{SYNC} brings one that can"
        )
    return Check("audio files", "ok", f"{detail}: {', '.join(AUDIO_FORMATS)}")


def _espeak() -> Check:
    name, purpose = "espeak-ng", "`cpc data synthesize` and `cpc quickstart` need it"
    try:
        path = importlib.import_module("espeakng_loader").get_library_path()
    except ImportError:
        return Check(name, "missing", purpose, f"{SYNC}, or: pip install espeakng-loader", is_necessary=False)
    try:
        version = ctypes.CDLL(str(path)).espeak_Info
    except (OSError, AttributeError) as error:
        advice = "pip install --force-reinstall espeakng-loader"
        return Check(name, "broken", f"{_in_one_line(error)}; {purpose}", advice, is_necessary=False)
    version.restype = ctypes.c_char_p
    return Check(name, "ok", f"{version(None).decode()} (espeakng-loader {metadata.version('espeakng-loader')})")


def _optional(package: str, module: str | None = None, *, purpose: str = "", advice: str = SYNC) -> Check:
    """Whether a package imports, by a module of another name if that is given."""
    try:
        importlib.import_module(module or package)
    except Exception as error:
        detail = "; ".join(filter(None, (_in_one_line(error), purpose)))
        return Check(package, "missing", detail, advice, is_necessary=False)
    return Check(package, "ok", metadata.version(package))


def _disk(folder: Path) -> Check:
    free_gib = shutil.disk_usage(folder).free / 2**30
    detail = f"{free_gib:.1f} GiB free in the current folder"
    if free_gib < SCARCE_DISK_GIB:
        return Check("disk", "broken", detail, "free some, or choose another folder with --run_dir")
    return Check("disk", "ok", detail)


if __name__ == "__main__":
    main()
