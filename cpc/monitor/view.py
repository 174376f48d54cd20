"""What the reader has asked to see."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

Split = Literal["training", "held-out"]
Unit = Literal["nats", "bits"]
Theme = Literal["light", "dark", "page"]
AS_TRAINED = "as trained"
# Okabe and Ito's colour-blind-safe hues, at luminances that can be seen on white and on near-black.
RUN_COLOURS = (
    *("#2079b8", "#d55e00", "#00906a", "#bf6597", "#c08500"),
    *("#3b9ed0", "#8a6ad0", "#a5622a", "#5b8f22", "#c2465c"),
)
MAX_POINTS = 24_000  # a browser redraws so many every second without effort


@dataclass(frozen=True)
class View:
    """Settings of all charts.

    Raises:
        ValueError: if a setting is none of these: what a browser sends may be anything.
    """

    focus: str | None = None  # the run whose steps k are shown; None: the first
    split: Split = "training"
    strategy: str = AS_TRAINED  # or the name of a strategy that was evaluated
    unit: Unit = "nats"  # of information
    smoothing: int = 1  # records averaged; odd, 1 for none
    log_x: bool = False
    log_y: bool = False  # of losses, norms, speeds and variances; bounds and accuracies may be zero and stay linear
    x_range: tuple[float, float] | None = None  # first and last step shown; None: all
    theme: Theme = "light"
    max_points: int = MAX_POINTS  # in a chart; more where there are very many series

    def __post_init__(self) -> None:
        chosen = ((self.split, Split), (self.unit, Unit), (self.theme, Theme))
        is_choice = all(value in get_args(choices) for value, choices in chosen) and isinstance(self.strategy, str)
        is_range = self.x_range is None or (len(self.x_range) == 2 and all(map(math.isfinite, self.x_range)))
        is_smoothing = type(self.smoothing) is int and self.smoothing >= 1 and self.smoothing % 2 == 1
        if not (is_choice and is_range and is_smoothing):
            raise ValueError(f"{self} is not a view: load the page again")

    def factor(self, field: str) -> float:
        """What a record's field is multiplied by to be shown: nats in the unit asked for, accuracies in per cent."""
        if field.endswith("_nats"):
            return 1 / math.log(2) if self.unit == "bits" else 1.0
        return 100.0 if field.endswith("accuracy") else 1.0
