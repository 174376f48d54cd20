"""A model's held-out batches, read by any estimator.

K steps.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from cpc.bounds.estimators import ESTIMATORS
from cpc.bounds.readings import Reading, ReadingTally, pooled
from cpc.bounds.sequences import ScoredRows, mean_baseline, scored_rows
from cpc.candidates import bounds_information, reading_of
from cpc.data.batch import Batch
from cpc.data.store.atomic import finite
from cpc.losses import EvalProtocol
from cpc.losses.contrastive import predictions
from cpc.model import CPC
from cpc.predictors import Output, Step

# mine reads as dv does; leave_one_out needs p(z | c) itself
READABLE = tuple(name for name, each in ESTIMATORS.items() if not each.needs_conditional and name != "mine")


def check_readable(estimators: Iterable[str], strategies: Iterable[str] = ()) -> None:
    """Refuse an estimator that a model cannot be read with, at all or with one of the strategies.

    Raises:
        ValueError: naming it.
    """
    strategies = tuple(strategies)
    for name in estimators:
        if name not in READABLE:
            raise ValueError(f"estimators names {name!r}: a model is read by one of {', '.join(READABLE)}")
        if ESTIMATORS[name].needs_baseline and "sequence_only" in strategies:
            raise ValueError(
                f"estimators names {name!r}, whose baseline takes half of the sequences that candidates come from: "
                "with negatives=sequence_only there is one; leave out the one or the other"
            )


class HeldOutReadings:
    """Adds up readings of every step over batches; `measured_tallies` calls it with each batch of each measure.

    Every estimator reads the model's own scores. TUBA and I_alpha get the row's constant, which InfoNCE leaves open,
    from half of the sequences that negatives come from, and read the other half; the others take the scores at their
    word, and most read little.

    Args:
        model: whose queries score.
        estimators: names in `READABLE`.
        generators: of the negatives' draws, by measure.
    """

    def __init__(
        self, model: CPC, estimators: Sequence[str], generators: Mapping[EvalProtocol, torch.Generator]
    ) -> None:
        self.model, self.estimators, self.generators = model, tuple(estimators), generators
        keys = [(measure, name) for measure in generators for name in estimators]
        self.tallies = {key: [ReadingTally() for _ in model.steps] for key in keys}
        self.num_met = {key: [0] * len(model.steps) for key in keys}  # candidates, added up over rows

    def __call__(self, measure: EvalProtocol, output: Output, batch: Batch) -> None:
        """Add a batch."""
        readings: dict[tuple[str, int], list[Reading]] = {}
        kinds = {name: ESTIMATORS[name].needs_baseline for name in self.estimators}
        for direction, predicted in enumerate(predictions(output, self.model.in_latents(batch)).values()):
            for with_baseline in sorted(set(kinds.values())):
                for place, rows in scored_rows(
                    *predicted,
                    strategy=measure.strategy,
                    num_negatives=measure.num_negatives,
                    skip_steps=self.model.loss_part.skip_steps,
                    with_baseline=with_baseline,
                    generator=self.generators[measure],
                ):
                    step = direction * len(predicted.queries) + place
                    for name in (name for name, needs in kinds.items() if needs == with_baseline):
                        readings.setdefault((name, step), []).append(_read(name, rows))
                        self.num_met[measure, name][step] += rows.num_met
        for (name, step), of_step in readings.items():
            self.tallies[measure, name][step].update(pooled(of_step))

    def record(self, measure: EvalProtocol, name: str, split: str) -> dict[str, Any]:
        """What an estimator read with a measure, lists over the steps; None where not finite, or without a row.

        Args:
            measure: one of those given.
            name: of an estimator.
            split: the part of the data.
        """
        tallies = self.tallies[measure, name]
        found = [tally.compute() if tally.num_rows else (math.nan, math.nan) for tally in tallies]
        nats, errors = zip(*found, strict=True)
        num_rows = [sum(tally.num_rows) for tally in tallies]
        means = zip(self.num_met[measure, name], num_rows, strict=True)
        on_grid = any(step.direction for step in self.model.steps)
        is_bound = bounds_information(measure.strategy) and not on_grid
        return {
            "estimator": name,
            "side": ESTIMATORS[name].side if is_bound else "neither",
            "strategy": measure.strategy,
            "split": split,
            "num_negatives": measure.num_negatives,
            "baseline": "half of the sequences" if ESTIMATORS[name].needs_baseline else None,
            "steps": [step.k for step in self.model.steps],
            "directions": [step.direction for step in self.model.steps],
            "num_batches": max(len(tally.num_rows) for tally in tallies),
            "num_rows": num_rows,
            "num_candidates": [num_met / rows if rows else None for num_met, rows in means],
            "estimate_nats": finite(nats),
            "standard_error_nats": finite(errors),
            "reading": reading_by(name, measure.strategy, on_grid),
        }


def reading_by(name: str, strategy: str, on_grid: bool = False) -> str:
    """What an estimator's number is with a strategy, in words for a legend.

    Args:
        name: of an estimator.
        strategy: whose latents were the candidates.
        on_grid: latents are patches.
    """
    words = reading_of(strategy, on_grid)
    return words.replace("lower bound on", "estimate of") if ESTIMATORS[name].side == "neither" else words


def readings_table(records: Sequence[dict[str, Any]]) -> str:
    """Records of one strategy side by side, one line per step."""
    first = records[0]
    lines = [
        f"further estimates in nats, {first['strategy']}, "
        + ("all candidates" if first["num_negatives"] is None else f"{first['num_negatives']} negatives"),
        f"{'k':>8} " + " ".join(f"{record['estimator']:>20}" for record in records),
    ]
    for place, (direction, k) in enumerate(zip(first["directions"], first["steps"], strict=True)):
        cells = [_cell(record["estimate_nats"][place], record["standard_error_nats"][place]) for record in records]
        lines.append(f"{Step(direction, k).name:>8} " + " ".join(f"{cell:>20}" for cell in cells))
    lines += [f"{record['estimator']:>14}: {record['reading']}" for record in records]
    return "\n".join(lines)


def _read(name: str, rows: ScoredRows) -> Reading:
    scores, positives, candidates, baseline = rows
    options = {"log_baseline": mean_baseline(scores, baseline)} if ESTIMATORS[name].needs_baseline else {}
    return ESTIMATORS[name].read(scores, positives, candidates, **options)


def _cell(nats: float | None, error: float | None) -> str:
    if nats is None:
        return "n/a"
    return f"{nats:.3f} +- {'n/a' if error is None else f'{error:.3f}'}"
