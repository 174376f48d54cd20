"""A callback for configs that records when each training step of the process begins."""

import time
from typing import Any

import lightning.pytorch as pl

starts: list[float] = []


class Stopwatch(pl.Callback):
    """A callback that appends the time at the beginning of each step to `starts`."""

    def on_train_batch_start(self, *_: Any) -> None:
        """Append the current time to `starts`."""
        starts.append(time.perf_counter())
