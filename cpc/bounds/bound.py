"""The bound log N - L with its company: ceiling, standard error, accuracy, strategy, split.

K steps, B sequences, G batches, U independent units: the batches, or the sequences of a single one.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from cpc.bounds.gaussian import advice, information_at_reading_nats, is_biased, is_saturated
from cpc.candidates import MOST_DRAW_EXCESS_NATS, bounds_information, reading_of
from cpc.data.store.atomic import finite
from cpc.losses.objectives import FULL_SOFTMAX, OBJECTIVES
from cpc.losses.output import ContrastiveOutput
from cpc.predictors import Step

SCHEMA = 1


@dataclass(frozen=True)
class Bound:
    """One evaluation of the bound; every list runs over the steps predicted, NaN where a step had no row.

    Attributes:
        steps: k, how far ahead each prediction lies: 1..K, or more where steps were skipped.
        directions: of each prediction: `down`, ... in grids, empty in sequences.
        strategy: where negatives came from; `cpc.candidates.reading_of` says what the number means. Where classes are
            predicted, the objective: a name in `cpc.losses.OBJECTIVES`.
        split: the part of the data.
        num_batches: batches averaged.
        num_rows: rows averaged.
        loss_nats: mean InfoNCE loss L.
        num_candidates: mean N, the positive included.
        mi_ceiling_nats: mean log N, which no critic exceeds.
        mi_bound_nats: mean log N - L.
        standard_error_nats: of `mi_bound_nats`, over the batches that have rows of the step, NaN of one; over the
            sequences of a single batch.
        accuracy: rate at which no negative scores higher than the positive, ties shared.
        draw_excess_nats: mean of what repeated draws may have added to `mi_bound_nats`; 0 without draws.
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
        """Steps that read within 0.3 nats of the ceiling: more candidates would show more."""
        return [is_saturated(b, c) for b, c in zip(self.mi_bound_nats, self.mi_ceiling_nats, strict=True)]

    @property
    def biased(self) -> list[bool]:
        """Steps where an exact critic on Gaussians would need 0.3 nats more than it reads; none if not a bound."""
        return [self.is_bound and is_biased(*each) for each in self._at_num_candidates]

    @property
    def is_bound(self) -> bool:
        """Whether `mi_bound_nats` bounds the information: not on grids, nor where drawn negatives repeat."""
        repeats = self._most_draw_excess_nats > MOST_DRAW_EXCESS_NATS
        return bounds_information(self.strategy) and not any(self.directions) and not repeats

    @property
    def information_for_gaussians_nats(self) -> list[float]:
        """What an exact critic on Gaussians would need to read this; infinite at the ceiling, NaN if not a bound."""
        return [information_at_reading_nats(*each) if self.is_bound else math.nan for each in self._at_num_candidates]

    def advice(self, change: str) -> list[str]:
        """What to make of each step, and what to change; empty where there is nothing to say, or this is not a bound.

        Args:
            change: the option that raises N.
        """
        return [advice(*each, change) if self.is_bound else "" for each in self._at_num_candidates]

    @property
    def reading(self) -> str:
        """What `mi_bound_nats` is, in words."""
        if self.strategy == FULL_SOFTMAX:
            return "entropy of the classes - cross-entropy, lower bound on I(class; c)"
        if self.strategy in OBJECTIVES:
            return f"log N - loss of {self.strategy}, not a bound on I(class; c)"
        return reading_of(self.strategy, any(self.directions), self._most_draw_excess_nats)

    @property
    def _most_draw_excess_nats(self) -> float:
        return max((excess for excess in self.draw_excess_nats if not math.isnan(excess)), default=0.0)

    @property
    def _at_num_candidates(self) -> list[tuple[float, float]]:
        """The reading of each step and the N whose logarithm its ceiling is: of ragged rows less than the mean N."""
        return [(b, math.exp(c)) for b, c in zip(self.mi_bound_nats, self.mi_ceiling_nats, strict=True)]

    @property
    def perplexity(self) -> list[float]:
        """Exp of the loss: of a full softmax, how many equally likely classes would be as hard to tell apart."""
        return [math.exp(min(loss, 700.0)) for loss in self.loss_nats]

    def against_entropy(self, class_entropy_nats: float) -> "Bound":
        """Of a full softmax: H - L, which bounds I(class; c) from below, in place of log n - L.

        H(class) - L <= H(class) - H(class given c) for any model, and no model exceeds H. log n is the entropy of
        equally frequent classes: log n - L would count the frequencies of a text as information.

        Args:
            class_entropy_nats: H, of the classes that were told apart; rather too low than too high.
        """
        ceilings = [class_entropy_nats + 0 * loss for loss in self.loss_nats]
        bounds = [class_entropy_nats - loss for loss in self.loss_nats]
        return replace(self, mi_ceiling_nats=ceilings, mi_bound_nats=bounds)

    def mean(self, name: str) -> float:
        """The unweighted mean of a list over the steps that had rows."""
        values = [v for v in getattr(self, name) if not math.isnan(v)]
        return sum(values) / len(values) if values else math.nan

    def record(self, step: int | None) -> dict[str, Any]:
        """One line of `bound.jsonl`: the fields and what they say; None for what is not finite, as without rows.

        Args:
            step: of training; None where that is unknown.
        """
        told = ["saturated", "biased", "information_for_gaussians_nats", "reading"]
        names = ["perplexity"] * (self.strategy == FULL_SOFTMAX) + told
        return finite({"schema": SCHEMA, "step": step} | asdict(self) | {name: getattr(self, name) for name in names})


class BoundTally:
    """Adds up `ContrastiveOutput`s, batch by batch, into a `Bound`.

    Sums and counts are added, never means: a ragged last batch weighs what it holds. The standard error takes batches
    as independent units, since the rows of one batch share candidates. Of a single batch its sequences are the units,
    which understates the error a little. So would batches that hold the same windows again: evaluate on one pass at
    most.

    Args:
        steps: what is predicted, as `CPC.steps` says; None: k = 1..K in a sequence.
    """

    def __init__(self, steps: Sequence[Step] | None = None) -> None:
        self.steps = steps
        self._sums: list[Tensor] = []

    @property
    def sums(self) -> list[Tensor]:
        """`[6, K, B]` of each batch, on the host: a GPU is waited for when somebody asks."""
        self._sums = [each.to("cpu", torch.float64) for each in self._sums]
        return self._sums

    @sums.setter
    def sums(self, sums: Sequence[Tensor]) -> None:
        self._sums = list(sums)

    def update(self, contrast: ContrastiveOutput) -> None:
        """Add a batch."""
        self._sums.append(torch.stack(contrast[1:]).detach())

    def compute(self, strategy: str, split: str) -> Bound:
        """The bound over everything added so far.

        Raises:
            ValueError: if nothing was added.
        """
        if not self.sums:
            raise ValueError(f"no batch of split {split!r} to compute a bound from")
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
    """Standard error of sum(gap) / sum(rows), linearised, over the units that have rows; NaN of one unit."""
    num_units = (rows > 0).sum(0).to(rows)
    correction = (num_units / (num_units - 1)).where(num_units > 1, math.nan)
    return (correction * (gap - bound * rows).square().sum(0)).sqrt() / rows.sum(0)


def steps_of(record: Mapping[str, Any]) -> list[Step]:
    """What the lists of a line of `bound.jsonl` run over; where it does not say, as in older runs, k = 1..K."""
    num_columns = len(record["mi_bound_nats"])
    steps = record.get("steps") or range(1, num_columns + 1)
    directions = record.get("directions") or [""] * num_columns
    return [Step(direction, k) for direction, k in zip(directions, steps, strict=True)]


def record_table(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """The first of a model's held-out lines of `bound.jsonl` as lines for people, with what its numbers are."""
    if not records:
        return ["held-out log N - L: not recorded with this model; measure it with cpc evaluate"]
    record = records[0]
    rows = {"k": [step.name for step in steps_of(record)]}
    for title, key in (("log N - L", "mi_bound_nats"), ("+-", "standard_error_nats"), ("ceiling", "mi_ceiling_nats")):
        rows[title] = ["-" if value is None else f"{value:.2f}" for value in record[key]]
    width = 1 + max(5, *map(len, rows["k"]))
    return [
        f"held-out log N - L of the same weights in nats, {record['strategy']} on {record['split']!r} "
        f"({record['reading']})",
        *(f"  {title:9}" + "".join(f"{cell:>{width}}" for cell in cells) for title, cells in rows.items()),
    ]
