"""Installation hints for optional dependencies, and the name of the distribution."""

DISTRIBUTION = "contrastive-predictive-coding"  # the name `cpc` belongs to another project on PyPI


def install_hint(extra: str) -> str:
    """Return the commands that install an extra, for messages about missing packages."""
    return f"install it with `uv sync --extra {extra}` or `{pip_install(extra)}`"


def pip_install(extra: str) -> str:
    """Return the pip command that installs an extra without a checkout."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
