"""Made-up runs for every test of the monitor."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.synthetic_runs import write_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from cpc.monitor.library import Library


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write_run(tmp_path / "runs" / "first", level=1.0)
    write_run(tmp_path / "runs" / "deeper" / "second", level=2.0)
    return tmp_path / "runs"


@pytest.fixture
def read() -> "Callable[..., Library]":
    """A function that reads the runs below some folders."""
    from cpc.monitor.library import Library  # needs the extra `dashboard`

    def read(*roots: Path) -> Library:
        library = Library(roots)
        library.read_all()
        return library

    return read


@pytest.fixture
def library(runs: Path, read: "Callable[..., Library]") -> "Library":
    return read(runs)
