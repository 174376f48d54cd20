"""`probe.json`: what `cpc probe` and `cpc abx` know of one model, beside each other."""

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cpc import __version__
from cpc.data.store.untrusted import read_json

SCHEMA = 3
REPORT_NAME = "probe.json"


def heading(model_folder: str | Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """What every report begins with: its schema, the weights, and what they were read with.

    Args:
        model_folder: of the model.
        config: its config.json.
    """
    return {
        "schema": SCHEMA,
        "model": {
            "folder": str(model_folder),
            "sha256": config["sha256"],
            "step": config["provenance"].get("step"),
        },
        "versions": {
            "cpc": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }


def read_report(path: str | Path, sha256: str) -> dict[str, Any]:
    """A report of the same weights; nothing if there is none.

    Args:
        path: of the JSON file.
        sha256: of the weights, from the model's config.json.

    Raises:
        ValueError: if the file is there and is no JSON object.
    """
    path = Path(path)
    if not path.exists():
        return {}
    try:
        found = read_json(path)
    except ValueError as error:
        raise ValueError(f"{error}; it is no report: delete it, or name another file with `out`") from error
    is_report = isinstance(found, dict) and isinstance(found.get("model"), dict)
    return found if is_report and found["model"].get("sha256") == sha256 else {}
