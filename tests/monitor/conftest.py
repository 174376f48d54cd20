"""Made-up runs for every test of the monitor."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.synthetic_runs import write_run

if TYPE_CHECKING:
    from cpc.monitor.library import Library


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two runs below one folder, the second twice as good."""
    write_run(tmp_path / "runs" / "first", level=1.0)
    write_run(tmp_path / "runs" / "deeper" / "second", level=2.0)
    return tmp_path / "runs"


@pytest.fixture
def library(runs: Path) -> Iterator["Library"]:
    """Of both, read."""
    from cpc.monitor.library import Library  # needs the extra `dashboard`

    library = Library([runs])
    library.read_all()
    yield library
    library.close()


@pytest.fixture(autouse=True)
def _cache_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's cache is none of the tests' business."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
