"""What the reader has asked to see."""

import math
from dataclasses import dataclass
from typing import Literal

Split = Literal["training", "held-out"]
AS_TRAINED = "as trained"
MAX_POINTS = 24_000  # a browser redraws so many every second without effort


@dataclass(frozen=True)
class View:
    """Settings of all charts.

    Attributes:
        runs: names of the runs shown, in the order of their colours.
        colours: each run's place in the palette, by name: hiding one does not recolour the others.
        focus: the run whose steps k are shown.
        split: records of training, or of held-out evaluations.
        strategy: `as trained`, or the name of a strategy that was evaluated.
        unit: of information.
        smoothing: records averaged; odd, 1 for none.
        log_x: steps on a logarithmic axis.
        log_y: losses, norms, speeds and variances on a logarithmic axis; bounds and accuracies, which may be zero or
            less, stay linear.
        x_range: first and last step shown; None: all.
        theme: for the colours of text and grid.
        max_points: in a chart, at most; more where there are very many series.
    """

    runs: tuple[str, ...] = ()
    colours: tuple[int, ...] = ()
    focus: str | None = None
    split: Split = "training"
    strategy: str = AS_TRAINED
    unit: Literal["nats", "bits"] = "nats"
    smoothing: int = 1
    log_x: bool = False
    log_y: bool = False
    x_range: tuple[float, float] | None = None
    theme: Literal["light", "dark", "page"] = "light"
    max_points: int = MAX_POINTS

    @property
    def per_nat(self) -> float:
        """Units of information in a nat."""
        return 1 / math.log(2) if self.unit == "bits" else 1.0
