"""The quickstart, shortened: every stage runs and the reports hold what they promise."""

import json
from pathlib import Path

import pytest

from cpc.quickstart import run

pytest.importorskip("espeakng_loader", reason="the extra 'speech' is not installed")
pytest.importorskip("plotly", reason="the extra 'dashboard' is not installed")


@pytest.mark.slow
def test_quickstart_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
