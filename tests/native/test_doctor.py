"""cpc.native.doctor: the states of each part, on made-up surroundings and on the real ones."""

import sys
import types
from pathlib import Path

import pytest
from refusals import refuses

from cpc.native import doctor


def test_the_real_environment_has_nothing_necessary_broken(capsys: pytest.CaptureFixture[str]) -> None:
    doctor.main()
    printed = capsys.readouterr().out
    for name in ("python", *doctor.NECESSARY, "gpu", "audio files", "espeak-ng", *doctor.OPTIONAL, "disk"):
        assert f" {name} " in printed


def test_a_broken_necessity_fails_and_a_missing_luxury_does_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    luxury = {"plotly": ("missing", "not there; install it")}
    monkeypatch.setattr(doctor, "report", lambda: luxury)
    doctor.main()
    monkeypatch.setattr(doctor, "report", lambda: luxury | {"torch": ("broken", "gone")})
    with pytest.raises(SystemExit) as leave:
        doctor.main()
    assert leave.value.code == 1
    assert "broken: torch" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("version", "state"),
    [("2.13.0+cpu", "broken"), ("2.14.1", "ok"), ("2.14.3+cu130", "ok"), ("2.15.0+cu132", "broken")],
)
def test_a_version_outside_the_set_is_broken(monkeypatch: pytest.MonkeyPatch, version: str, state: str) -> None:
    monkeypatch.setattr(doctor.metadata, "version", lambda name: version)
    found, detail = doctor.report()["torch"]
    assert found == state
    assert detail.startswith(version)
    assert ("uv sync" in detail) == (state == "broken")


def test_a_package_that_raises_on_import_is_named_and_not_fatal(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> types.ModuleType:
        raise OSError("undefined symbol:\n  _ZN3c10")  # what a wheel of another CUDA build says

    monkeypatch.setattr(doctor.importlib, "import_module", fail)
    checks = doctor.report()
    assert all(checks[name][0] == "broken" for name in doctor.NECESSARY)
    assert all(checks[name][0] == "missing" for name in (*doctor.OPTIONAL, "espeak-ng"))
    assert checks["torchaudio"][1].startswith("OSError: undefined symbol: _ZN3c10; install again: uv sync")


def test_espeak_that_cannot_be_loaded_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = tmp_path / "libespeak-ng.so"
    library.write_text("not a library")
    module = types.SimpleNamespace(get_library_path=lambda: str(library))
    monkeypatch.setitem(sys.modules, "espeakng_loader", module)  # type: ignore[arg-type]
    with pytest.raises(OSError, match="libespeak-ng"):
        doctor.espeak()


def test_formats_and_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import soundfile

    monkeypatch.setattr(soundfile, "available_formats", lambda: {"WAV": "", "FLAC": "", "OGG": ""})
    refuses("cannot read MP3", doctor.audio_files)
    usage = types.SimpleNamespace(free=2**29)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda folder: usage)
    refuses(r"current folder=0\.5 must be at least 2", doctor.disk, tmp_path)
    usage.free = 2**40
    assert doctor.disk(tmp_path) == "1024.0 GiB free in the current folder"
