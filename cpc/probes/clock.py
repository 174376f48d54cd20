"""What the stages of a report take."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Seconds of each stage; those of a stage that comes again are added up."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Takes the time of the block."""
        start = time.monotonic()
        yield
        self.seconds[stage] = round(self.seconds.get(stage, 0.0) + time.monotonic() - start, 2)

    @property
    def total(self) -> float:
        """Seconds of all stages."""
        return round(sum(self.seconds.values()), 1)
