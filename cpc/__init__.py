"""Contrastive Predictive Coding: pretrain encoders, watch the bound log N - L, judge with linear probes.

The public names load on first use, so that `import cpc` and the light commands never import torch.
"""

import importlib
from typing import Any

_HOME_OF = {
    "CPC": "cpc.model",
    "load_pretrained": "cpc.checkpoint",
    "save_pretrained": "cpc.checkpoint",
    "pretrain": "cpc.pretraining.pretrain",
    "evaluate": "cpc.evaluation",
    "probe": "cpc.probes.report",
    "embed": "cpc.probes.embed",
    "Run": "cpc.pretraining.run",
}
_SUBPACKAGES = ("bounds", "candidates", "contexts", "data", "encoders", "losses", "predictors", "probes")

__all__ = [*_HOME_OF, *_SUBPACKAGES]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(importlib.import_module(_HOME_OF[name]), name)
    if name in _SUBPACKAGES:
        return importlib.import_module(f"cpc.{name}")
    raise AttributeError(f"module 'cpc' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
