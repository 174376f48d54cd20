"""Measurement of the time that each stage of a command takes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """A stopwatch that adds up the seconds of each stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Add the duration of the block to a stage."""
        start = time.monotonic()
        yield
        self.seconds[stage] = round(self.seconds.get(stage, 0.0) + time.monotonic() - start, 2)

    @property
    def total(self) -> float:
        """Sum of the seconds of all stages."""
        return round(sum(self.seconds.values()), 1)
