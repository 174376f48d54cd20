"""The settings of the page."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from cpc.config.argument_rules import Choices, check_fields
from cpc.pages.palette import BLUE, GREEN, ORANGE, PURPLE, VERMILION

SPLITS = ("training", "held-out")
UNITS = ("nats", "bits")
SMOOTHING = (1, 5, 21, 101)
AS_TRAINED = "as trained"
RUN_COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, "#3b9ed0", "#8a6ad0", "#a5622a", "#5b8f22", "#c2465c")
MAX_POINTS = 24_000  # number of points that a browser can redraw every second


@dataclass(frozen=True)
class View:
    """Settings of all charts."""

    focus: str | None = None  # name of the run whose steps k are shown; None: the first run
    split: Annotated[str, Choices(SPLITS)] = "training"
    strategy: str = AS_TRAINED  # `as trained`, or the name of a strategy that was evaluated
    unit: Annotated[str, Choices(UNITS)] = "nats"  # unit of information
    smoothing: Annotated[int, Choices(SMOOTHING)] = 1  # number of records that are averaged
    log: Sequence[str] = ()  # logarithmic axes: x, y; y of bounds and accuracies, which may be zero, stays linear
    x_range: Sequence[float | int] | None = None  # first and last shown step; None: all
    num_resets: int | None = None  # a new number resets the zoom of every chart
    max_points: int = MAX_POINTS  # number of points of a chart; a chart of very many series may have more

    def __post_init__(self) -> None:
        check_fields(self)

    def factor(self, field: str) -> float:
        """Return the factor from a record's field to the value shown: nats or bits, and accuracies in percent."""
        if field.endswith("_nats"):
            return 1 / math.log(2) if self.unit == "bits" else 1.0
        return 100.0 if field.endswith("accuracy") else 1.0
