"""`probe.json`, the results of `cpc probe` and `cpc abx` for one model."""

import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cpc import __version__
from cpc.data.store.untrusted import read_json

SCHEMA = 4
REPORT_NAME = "probe.json"


@contextmanager
def add_seconds(seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Add the duration of the block to the seconds of a stage."""
    start = time.monotonic()
    yield
    seconds[stage] = round(seconds.get(stage, 0.0) + time.monotonic() - start, 2)


def heading(model_folder: str | Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first entries of a report: its schema, the versions, and the model with its config.json."""
    return {
        "schema": SCHEMA,
        "model": {"folder": str(model_folder), "sha256": config["sha256"], "step": config["provenance"].get("step")},
        "versions": {
            "cpc": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }


def read_report(path: str | Path, sha256: str) -> dict[str, Any]:
    """Read a report; it is empty if the file does not exist or belongs to weights with another hash."""
    path = Path(path)
    if not path.exists():
        return {}
    try:
        report = read_json(path)
    except ValueError as error:
        raise ValueError(f"{error}; the file is not a report: delete it, or name another file with `out`") from error
    is_report = isinstance(report, dict) and isinstance(report.get("model"), dict)
    return report if is_report and report["model"].get("sha256") == sha256 else {}
