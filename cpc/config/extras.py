"""Installation hints for optional dependencies, and the name of the distribution."""

import importlib
from typing import Any

DISTRIBUTION = "contrastive-predictive-coding"  # the name `cpc` belongs to another project on PyPI


def install_hint(extra: str) -> str:
    """Return the commands that install an extra, for messages about missing packages."""
    return f"install it with `uv sync --extra {extra}` or `{pip_install(extra)}`"


def import_extra(module: str, extra: str, need: str) -> Any:
    """Import a module of an extra; raise a ValueError that names the need, and how to install the extra."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ValueError(f"{need}: {install_hint(extra)}") from error


def pip_install(extra: str) -> str:
    """Return the pip command that installs an extra without a checkout."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
