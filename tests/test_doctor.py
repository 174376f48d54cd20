"""cpc.doctor: the states of each part, on made-up surroundings and on the real ones."""

import subprocess
import sys
import types
from pathlib import Path

import pytest

from cpc import doctor


def test_the_real_environment_has_nothing_necessary_broken(capsys: pytest.CaptureFixture[str]) -> None:
    doctor.main()
    printed = capsys.readouterr().out
    for name in ("python", "torch", "torchvision", "torchaudio", "lightning", "threads", "cpu", "gpu", "allocator"):
        assert f" {name} " in printed
    assert "everything necessary works" in printed


def test_a_broken_necessity_fails_and_a_missing_luxury_does_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    luxury = doctor.Check("plotly", "missing", "not there", "install it", is_necessary=False)
    flawed = doctor.Check("espeak-ng", "broken", "does not load", is_necessary=False)
    monkeypatch.setattr(doctor, "report", lambda: [luxury, flawed])
    doctor.main()
    monkeypatch.setattr(doctor, "report", lambda: [luxury, doctor.Check("torch", "broken", "gone", "sync")])
    with pytest.raises(SystemExit) as leave:
        doctor.main()
    assert leave.value.code == 1
    assert "broken: torch" in capsys.readouterr().out


def test_a_version_outside_the_set_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("torch")
    for version, state in (
        ("2.13.0+cpu", "broken"),
        ("2.14.1", "ok"),
        ("2.14.3+cu130", "ok"),
        ("2.15.0+cu132", "broken"),
    ):
        module.__version__ = version  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "torch", module)
        check = doctor._package("torch")
        assert check.state == state, version
    assert "2.15.0" in check.detail
    assert "uv sync" in check.advice


def test_a_package_that_raises_on_import_is_broken_not_fatal(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> types.ModuleType:
        raise OSError("undefined symbol:\n  _ZN3c10")  # what a wheel of another CUDA build says

    monkeypatch.setattr(doctor.importlib, "import_module", fail)
    check = doctor._package("torchaudio")
    assert check.state == "broken"
    assert check.detail == "OSError: undefined symbol: _ZN3c10"
    assert "uv sync" in check.advice


def test_cpu_flags(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nflags\t\t: fpu avx2 avx512f avx512_bf16\n\nprocessor\t: 1\n")
    assert doctor._cpu(cpuinfo).detail == "avx512f yes, avx512_bf16 yes, amx_bf16 no"
    assert "cpc quickstart times both" in doctor._cpu(cpuinfo).advice
    cpuinfo.write_text("processor\t: 0\nFeatures\t: fp asimd\n")
    assert doctor._cpu(cpuinfo).detail == "avx512f unknown, avx512_bf16 unknown, amx_bf16 unknown"
    assert "unknown" in doctor._cpu(tmp_path / "absent").detail


def test_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert (doctor._gpu().state, doctor._gpu().is_necessary) == ("missing", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"card {index}")
    assert doctor._gpu().state == "ok"
    assert doctor._gpu().detail.endswith("card 0, card 1")


PINNED = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "17179869184"}


@pytest.mark.parametrize(
    ("environment", "libc", "state", "is_advised"),
    [
        ({}, "glibc", "ok", True),
        ({"MALLOC_MMAP_THRESHOLD_": "4294967296"}, "glibc", "ok", True),
        (PINNED, "glibc", "ok", False),
        (PINNED | {"MALLOC_MMAP_THRESHOLD_": "4G"}, "glibc", "broken", True),
        ({"LD_PRELOAD": "libjemalloc.so.2"}, "glibc", "ok", False),
        ({}, "", "ok", False),
    ],
)
def test_allocator(environment: dict[str, str], libc: str, state: str, is_advised: bool) -> None:
    check = doctor._allocator(environment, libc)
    assert check.state == state
    assert not (check.state == "broken" and check.is_necessary)
    advice = "export MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=17179869184"
    assert (advice in check.advice) == is_advised


@pytest.mark.skipif(doctor.platform.libc_ver()[0] != "glibc", reason="asks glibc itself")
@pytest.mark.parametrize(("threshold", "is_mapped"), [("4294967296", False), ("4G", True)])
def test_glibc_reads_the_thresholds_as_the_advice_says(threshold: str, is_mapped: bool) -> None:
    # A mapped block starts right behind its 16-byte header on a page of its own; one from the heap comes after others.
    code = """if True:
        import ctypes
        libc = ctypes.CDLL(None)
        libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
        print(all(libc.malloc(8 << 20) % 4096 == 16 for _ in range(4)))
    """
    environment = {"MALLOC_MMAP_THRESHOLD_": threshold, "MALLOC_TRIM_THRESHOLD_": "17179869184"}
    output = subprocess.run([sys.executable, "-S", "-c", code], env=environment, capture_output=True, text=True)
    assert output.stdout.strip() == str(is_mapped), output.stderr


def test_espeak_missing_and_unloadable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "espeakng_loader", None)
    missing = doctor._espeak()
    assert (missing.state, missing.is_necessary) == ("missing", False)
    assert "pip install espeakng-loader" in missing.advice
    library = tmp_path / "libespeak-ng.so"
    library.write_text("not a library")
    module = types.SimpleNamespace(get_library_path=lambda: str(library))
    monkeypatch.setitem(sys.modules, "espeakng_loader", module)  # type: ignore[arg-type]
    broken = doctor._espeak()
    assert (broken.state, broken.is_necessary) == ("broken", False)


def test_what_images_need_is_looked_for_by_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_guarded", lambda name, look: doctor.Check(name, "ok", ""))
    for module in ("skimage", "timm"):
        monkeypatch.setitem(sys.modules, module, None)
    checks = {check.name: check for check in doctor.report()}
    assert (checks["pillow"].state, checks["scikit-image"].state, checks["timm"].state) == ("ok", "missing", "missing")
    assert "HOG features and the image quickstart need it" in checks["scikit-image"].detail
    assert "uv sync" in checks["scikit-image"].advice
    assert checks["timm"].advice == "pip install timm"
    assert not any(checks[name].is_necessary for name in ("scikit-image", "timm"))


def test_formats_and_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import soundfile

    monkeypatch.setattr(soundfile, "available_formats", lambda: {"WAV": "", "FLAC": "", "OGG": ""})
    check = doctor._audio_files()
    assert check.state == "broken"
    assert "cannot read MP3" in check.detail
    usage = types.SimpleNamespace(free=2**29)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda folder: usage)
    assert doctor._disk(tmp_path).state == "broken"
    usage.free = 2**40
    assert doctor._disk(tmp_path).state == "ok"
