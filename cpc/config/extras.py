"""The optional parts of the installation, and the name that it is installed by."""

DISTRIBUTION = "contrastive-predictive-coding"  # `cpc` is another project's on the package index


def install_hint(extra: str) -> str:
    """What to type for an extra, for the messages about one that is missing."""
    return f"install it with `uv sync --extra {extra}` or `{pip_install(extra)}`"


def pip_install(extra: str) -> str:
    """The command of those who have no checkout."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
