"""The bound log N - L with its ceiling, standard error, accuracy and conditions.

K steps, B sequences, G batches, U independent units: the batches, or the sequences of a single batch.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from cpc.bounds.gaussian import advice, information_at_bound_nats, is_biased, is_saturated
from cpc.candidates import MOST_DRAW_EXCESS_NATS, bounds_information, interpretation
from cpc.config.argument_rules import Range
from cpc.contexts.grid import is_on_grid
from cpc.data.store.atomic import finite
from cpc.losses.objectives import FULL_SOFTMAX, OBJECTIVES
from cpc.losses.output import ContrastiveOutput
from cpc.predictors import Step

SCHEMA = 1


@dataclass(frozen=True)
class Bound:
    """The result of one evaluation of the bound.

    Every list has one entry per predicted step, NaN if a step has no rows.

    Attributes:
        steps: k, the number of latents ahead: 1..K, or the predictor's `steps`; larger if the loss skips some.
        directions: directions of time, such as `down` in grids; empty for a single direction of sequences.
        strategy: strategy of the negatives; `cpc.candidates.interpretation` explains what the bound then means. For
            losses of classes it is the objective, a name in `cpc.losses.OBJECTIVES`.
        split: split of the corpus.
        num_batches: number of batches.
        num_rows: number of rows.
        loss_nats: mean InfoNCE loss L.
        num_candidates: mean N, including the positive.
        mi_ceiling_nats: mean log N, the maximum of the bound for any critic.
        mi_bound_nats: mean log N - L.
        standard_error_nats: standard error of `mi_bound_nats` over the batches with rows of the step; NaN if only one
            of several batches has such rows. If there is a single batch, it is the error over the sequences of the
            batch.
        accuracy: fraction of rows in which no negative scores higher than the positive; ties count as fractions.
        draw_excess_nats: mean excess of `mi_bound_nats` that repeated negatives may cause; 0 without sampling.
    """

    steps: list[int]
    directions: list[str]
    strategy: str
    split: str
    num_batches: int
    num_rows: list[int]
    loss_nats: list[float]
    num_candidates: list[float]
    mi_ceiling_nats: list[float]
    mi_bound_nats: list[float]
    standard_error_nats: list[float]
    accuracy: list[float]
    draw_excess_nats: list[float]

    @property
    def saturated(self) -> list[bool]:
        """For each step, whether the bound is within 0.3 nats of the ceiling, so more candidates could raise it."""
        return [is_saturated(b, c) for b, c in zip(self.mi_bound_nats, self.mi_ceiling_nats, strict=True)]

    @property
    def biased(self) -> list[bool]:
        """For each step, whether an exact critic on Gaussians has a bias above 0.3 nats; False for no bound."""
        return [self.is_bound and is_biased(*estimate) for estimate in self._estimates]

    @property
    def is_bound(self) -> bool:
        """Whether `mi_bound_nats` is a lower bound. It is none on grids, or if sampled negatives repeat often."""
        repeats = self._most_draw_excess_nats > MOST_DRAW_EXCESS_NATS
        return bounds_information(self.strategy) and not is_on_grid(self.directions) and not repeats

    @property
    def information_for_gaussians_nats(self) -> list[float]:
        """For each step, the information at which an exact critic on Gaussians has this bound.

        The information is infinite at the ceiling, and NaN if the value is not a bound.
        """
        return [information_at_bound_nats(*e) if self.is_bound else math.nan for e in self._estimates]

    def advice(self, change: str) -> list[str]:
        """Return advice for each step; empty if the bias is small, or the value is not a bound.

        Args:
            change: the option that raises N.
        """
        return [advice(*estimate, change) if self.is_bound else "" for estimate in self._estimates]

    @property
    def reading(self) -> str:
        """The interpretation of `mi_bound_nats`, for people."""
        if self.strategy == FULL_SOFTMAX:
            return "entropy of the classes - cross-entropy, lower bound on I(class; c)"
        if self.strategy in OBJECTIVES:
            return f"log N - loss of {self.strategy}, not a bound on I(class; c)"
        return interpretation(self.strategy, is_on_grid(self.directions), self._most_draw_excess_nats)

    @property
    def _most_draw_excess_nats(self) -> float:
        return max((excess for excess in self.draw_excess_nats if not math.isnan(excess)), default=0.0)

    @property
    def _estimates(self) -> list[tuple[float, float]]:
        """For each step, the bound and exp(ceiling). If N differs between rows, exp(ceiling) is below the mean of N."""
        return [(b, math.exp(c)) for b, c in zip(self.mi_bound_nats, self.mi_ceiling_nats, strict=True)]

    @property
    def perplexity(self) -> list[float]:
        """The exponential of the loss; for a full softmax, the equivalent number of equally likely classes."""
        return [math.exp(min(loss, 700.0)) for loss in self.loss_nats]

    def against_entropy(self, class_entropy_nats: float) -> "Bound":
        """Return the bound H - L of a full softmax on I(class; c), instead of log n - L.

        H(class) - L <= H(class) - H(class given c) for any model, and H is the ceiling. log n is the entropy of equally
        frequent classes, so log n - L would count the class frequencies of a text as information. Prefer an estimate of
        H that is too low to one that is too high.
        """
        ceilings = [class_entropy_nats + 0 * loss for loss in self.loss_nats]
        bounds = [class_entropy_nats - loss for loss in self.loss_nats]
        return replace(self, mi_ceiling_nats=ceilings, mi_bound_nats=bounds)

    def mean(self, name: str) -> float:
        """Return the unweighted mean of a list over the steps with rows."""
        values = [v for v in getattr(self, name) if not math.isnan(v)]
        return sum(values) / len(values) if values else math.nan

    def record(self, step: int | None) -> dict[str, Any]:
        """Return a line of `bound.jsonl`: the fields and their interpretation. Values that are not finite become None.

        Args:
            step: training step; None if unknown.
        """
        derived = ["saturated", "biased", "information_for_gaussians_nats", "reading"]
        names = ["perplexity"] * (self.strategy == FULL_SOFTMAX) + derived
        return finite({"schema": SCHEMA, "step": step} | asdict(self) | {name: getattr(self, name) for name in names})


class BoundTally:
    """An accumulator of `ContrastiveOutput` batches that computes a `Bound`.

    Sums and counts are added, not means, so batches are weighted by their rows. Batches are the independent units of
    the standard error, because the rows of one batch share candidates. For a single batch the units are its sequences,
    which underestimates the error slightly. Repeated windows would also underestimate it: evaluate each window at most
    once.

    Args:
        steps: predicted steps, as in `CPC.steps`; None: k = 1..K of a sequence.
    """

    def __init__(self, steps: Sequence[Step] | None = None) -> None:
        self.steps = steps
        self._sums: list[Tensor] = []

    @property
    def sums(self) -> list[Tensor]:
        """The sums `[6, K, B]` of each batch on the CPU; reading this property waits for the GPU."""
        self._sums = [batch.to("cpu", torch.float64) for batch in self._sums]
        return self._sums

    @sums.setter
    def sums(self, sums: Sequence[Tensor]) -> None:
        self._sums = list(sums)

    def update(self, contrast: ContrastiveOutput) -> None:
        """Add a batch."""
        self._sums.append(torch.stack(contrast[1:]).detach())

    def compute(self, strategy: str, split: str) -> Bound:
        """Return the bound over all batches added so far, of which there must be one."""
        Range(1).check(f"the number of batches of {split!r}", len(self.sums))
        if len(self.sums) > 1:
            units = torch.stack([batch.sum(2) for batch in self.sums])  # [G, 6, K]
        else:
            units = self.sums[0].permute(2, 0, 1)  # [B, 6, K]
        rows, loss, log_n, n, accuracy, excess = units.sum(0)
        bound = (log_n - loss) / rows
        lists = {
            "num_rows": rows.long(),
            "loss_nats": loss / rows,
            "num_candidates": n / rows,
            "mi_ceiling_nats": log_n / rows,
            "mi_bound_nats": bound,
            "standard_error_nats": _error_of_ratio(units[:, 2] - units[:, 1], units[:, 0], bound),
            "accuracy": accuracy / rows,
            "draw_excess_nats": excess / rows,
        }
        steps = self.steps or [Step("", k) for k in range(1, len(rows) + 1)]
        return Bound(
            steps=[step.k for step in steps],
            directions=[step.direction for step in steps],
            strategy=strategy,
            split=split,
            num_batches=len(self.sums),
            **{name: values.tolist() for name, values in lists.items()},
        )


def _error_of_ratio(gap: Float[Tensor, "U K"], rows: Float[Tensor, "U K"], bound: Float[Tensor, " K"]) -> Tensor:
    """Return the linearised standard error of sum(gap) / sum(rows) over the units with rows; NaN for one unit."""
    num_units = (rows > 0).sum(0).to(rows)
    correction = (num_units / (num_units - 1)).where(num_units > 1, math.nan)
    return (correction * (gap - bound * rows).square().sum(0)).sqrt() / rows.sum(0)


def steps_of(record: Mapping[str, Any]) -> list[Step]:
    """Return the steps of the lists in a line of `bound.jsonl`; k = 1..K if the line has none, as in older runs."""
    num_columns = len(record["mi_bound_nats"])
    steps = record.get("steps") or range(1, num_columns + 1)
    directions = record.get("directions") or [""] * num_columns
    return [Step(direction, k) for direction, k in zip(directions, steps, strict=True)]
