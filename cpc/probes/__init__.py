"""Probes of frozen features: feature extraction, linear probes, baselines and reports.

Public names are imported on first use, so that reading features does not import Lightning. The function `embed` has
the same name as its module; import it with `from cpc.probes.embed import embed`.
"""

import importlib
from typing import Any

_HOME_OF = {
    "Comparison": "comparison",
    "Examples": "task",
    "Extraction": "store",
    "FeatureStore": "store",
    "OnlineProbe": "online",
    "Probe": "classifier",
    "ProbeResult": "results",
    "SupervisedProtocol": "supervised",
    "Task": "task",
    "Tracker": "tracker",
    "fit_probe": "fit",
    "open_probe_data": "store",
    "probe": "report",
    "probe_tables": "tables",
    "train_supervised": "supervised",
}

__all__ = [name for name in _HOME_OF if name != "probe"]  # the reference shows it as `cpc.probe`


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'cpc.probes' has no attribute {name!r}")
    return getattr(importlib.import_module(f"cpc.probes.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME_OF])
