"""Calls that must be refused."""

from collections.abc import Callable
from typing import Any

import pytest


def refuses(message: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """The call raises a ValueError whose text holds the message, a regular expression."""
    with pytest.raises(ValueError, match=message):
        call(*arguments, **options)
