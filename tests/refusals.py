"""Calls that must be refused."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

# A checkpoint of nothing that is read as one of a run.
SAVED = {
    "global_step": 7,
    "epoch": 0,
    "pytorch-lightning_version": "2.6.6",
    "state_dict": {"w": torch.arange(1000.0)},
    "loops": {"fit_loop": {}},
    "callbacks": {},
    "optimizer_states": [],
    "lr_schedulers": [],
    "cpc": {"architecture": {}, "settings": {}, "num_workers": 0, "ranks": []},
}


def refuses(message: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """The call raises a ValueError whose text holds the message, a regular expression."""
    with pytest.raises(ValueError, match=message):
        call(*arguments, **options)


class Code:
    """Makes the folder when it is read from a pickle."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.folder),)
