"""When the training steps of this process began, noted by a callback that a config can name."""

import time
from typing import Any

import lightning.pytorch as pl

starts: list[float] = []


class Stopwatch(pl.Callback):
    """Notes the time at each step's beginning in `starts`."""

    def on_train_batch_start(self, *_: Any) -> None:
        """Note the time."""
        starts.append(time.perf_counter())
