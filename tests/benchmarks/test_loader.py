"""The loader's benchmark on a small corpus: every source of both modalities is read and timed."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = {"audio": {"pack", "shards", "shards fetched"}, "signals": {"pack", "masked", "shards", "shards fetched"}}


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize("modality", SOURCES)
def test_every_source_has_a_figure(
    modality: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks import loader

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(loader, "NUM_FILES", 40)
    monkeypatch.setattr(loader, "machine_state", lambda **_: {"threads": 1})
    monkeypatch.setattr(sys, "argv", ["loader", "--modality", modality, "--seconds", "0.01"])
    loader.main()
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures.pop("machine") == {"threads": 1}
    samplers = ("uniform", "same_speaker")
    expected = {f"times_real_time_{source}_{sampler}" for source in SOURCES[modality] for sampler in samplers}
    assert set(figures) == expected | {"times_real_time_shards_first_pass"}
    assert all(figure > 0 for figure in figures.values())
