"""The estimators by name, and what each needs and means."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from cpc.bounds.estimators.donsker_varadhan import MovingAverageGradient, donsker_varadhan, smile
from cpc.bounds.estimators.info_nce import info_nce
from cpc.bounds.estimators.interpolated import interpolated
from cpc.bounds.estimators.jensen_shannon import jensen_shannon, jensen_shannon_nwj
from cpc.bounds.estimators.leave_one_out import leave_one_out
from cpc.bounds.estimators.reading import Reading
from cpc.bounds.estimators.tuba import nwj, tuba

Side = Literal["lower", "upper", "neither"]


@dataclass(frozen=True)
class Estimator:
    """One way to read information from a score matrix.

    Attributes:
        read: scores (and `log_baseline`, if it needs one) -> `Reading`.
        side: of the truth that the expected reading lies on, for any critic and any number of candidates.
        needs_baseline: takes `log_baseline`, the log of a positive function of the row.
        needs_conditional: takes log p(y | x), which only a task of known information has: no critic is trained for it.
        best_offset: what the best scores have beyond log p(y | x) / p(y).
        objective: makes what training climbs, where that is not the reading itself; estimators that share it can read
            one and the same critic.
    """

    read: Callable[..., Reading]
    side: Side
    needs_baseline: bool = False
    needs_conditional: bool = False
    best_offset: float = 0.0
    objective: Callable[[], Callable[[Tensor], Tensor]] | None = None


def _jensen_shannon() -> Callable[[Tensor], Tensor]:
    return jensen_shannon


ESTIMATORS: dict[str, Estimator] = {
    "info_nce": Estimator(info_nce, "lower"),
    "nwj": Estimator(nwj, "lower", best_offset=1.0),
    "tuba": Estimator(tuba, "lower", needs_baseline=True),
    "interpolated": Estimator(interpolated, "lower", needs_baseline=True),
    "dv": Estimator(donsker_varadhan, "neither"),
    "mine": Estimator(donsker_varadhan, "neither", objective=MovingAverageGradient),
    "js": Estimator(jensen_shannon_nwj, "lower", objective=_jensen_shannon),
    "smile": Estimator(smile, "neither", objective=_jensen_shannon),
    "leave_one_out": Estimator(leave_one_out, "upper", needs_conditional=True),
}


def estimator_named(name: str) -> Estimator:
    """An estimator of the registry.

    Raises:
        ValueError: if there is none of that name.
    """
    if name not in ESTIMATORS:
        raise ValueError(f"estimators names {name!r}, which is not one of {', '.join(ESTIMATORS)}")
    return ESTIMATORS[name]
