"""The quickstart, shortened: every stage runs and the reports hold what they promise."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from cpc.cli import main
from cpc.quickstart import run


@pytest.mark.parametrize(("missing", "extra"), [("espeakng_loader", "speech"), ("plotly.offline", "dashboard")])
def test_a_missing_extra_is_named_before_anything_starts(
    missing: str,
    extra: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for module in ("espeakng_loader", "plotly.offline"):
        monkeypatch.setitem(sys.modules, module, None if module == missing else ModuleType(module))
    with pytest.raises(SystemExit) as exit_:
        main(["quickstart", "--out", str(tmp_path / "out"), "--corpus", str(tmp_path / "corpus")])
    assert exit_.value.code == 2
    message = capsys.readouterr().err
    assert message.startswith(f"cpc: error: the quickstart needs {missing.partition('.')[0]}")
    assert f"uv sync --extra {extra}" in message
    assert f"cpc[{extra}]" in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_quickstart_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("espeakng_loader", reason="the extra 'speech' is not installed")
    pytest.importorskip("plotly", reason="the extra 'dashboard' is not installed")
    monkeypatch.setattr(run, "SUPERVISED_SECONDS", 5.0)
    monkeypatch.setattr(run, "PROBE_TRAIN_MINUTES", 6.0)
    run.quickstart(tmp_path / "out", tmp_path / "corpus", steps=60)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    for task in ("phones", "speaker"):
        assert set(report[task]) == {"majority", "random", "mfcc", "cpc", "cpc_z", "supervised"}
        assert all(0 < value < 100 for value in report[task].values())
        assert report[task]["random"] > report[task]["majority"]
    assert len(report["mi_bound_nats"]) == len(report["mi_ceiling_nats"]) == 12
    assert all(
        bound < ceiling for bound, ceiling in zip(report["mi_bound_nats"], report["mi_ceiling_nats"], strict=True)
    )
    assert report["mi_bound_nats"][0] > 0.5  # 60 steps are enough to leave zero
    assert "total" in report["seconds"]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "plotly" in page
    with pytest.raises(ValueError, match="already holds a quickstart"):
        run.quickstart(tmp_path / "out", tmp_path / "corpus", steps=60)
