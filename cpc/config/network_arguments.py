"""Checks of the arguments of networks."""

from typing import Any

from cpc.config.argument_rules import plain


def check_sizes(**sizes: Any) -> None:
    """Raise ValueError, with all sizes, unless every size is at least 1; a size may be several numbers."""
    sizes = plain(sizes)
    numbers = [number for size in sizes.values() for number in (size if isinstance(size, tuple | list) else (size,))]
    if min(numbers) < 1:
        *names, last = (f"{name}={size}" for name, size in sizes.items())
        given = f"{', '.join(names)} and {last}" if names else last
        raise ValueError(f"{given} must {'all ' if len(names) > 1 else ''}be at least 1")


def check_dropout(dropout: float) -> None:
    """Raise ValueError unless `dropout` is a probability below 1."""
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout={dropout} must be a probability below 1")
