"""Checks of a model's held-out estimates for self-consistency (`cpc.bounds.self_consistency`).

K steps.
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from cpc.bounds.bound import SCHEMA
from cpc.bounds.estimators import ESTIMATORS
from cpc.bounds.readings import ReadingTally, weighted_sum
from cpc.bounds.self_consistency import CHECKS, STRATEGY, Check, CheckedRows, Verdict, checked_rows, pair_of, verdict
from cpc.bounds.sequences import ScoredRows
from cpc.data.batch import Batch
from cpc.data.store.atomic import finite
from cpc.data.store.records import append_record
from cpc.evaluation.readings import read_rows
from cpc.losses import EvalProtocol
from cpc.losses.contrastive import predictions
from cpc.model import CPC
from cpc.predictors import Output, Step

INFO_NCE = "info_nce"
RECORDS = "self_checks.jsonl"
_COPIED = ("split", "check", "estimator", "num_negatives", "verdict")  # fields of the report that the monitor shows
# For each check, the tallies of its reading and of its reference; the reference of `shuffled` is 0.
_TALLIES: dict[Check, tuple[str, tuple[str, ...]]] = {
    "shuffled": ("shuffled", ()),
    "data_processing": ("processed", ("plain",)),
    "rescaling": ("rescaled", ("plain",)),
    "additivity": ("pair", ("first", "second")),
}
_MEANINGS: dict[tuple[Check, Verdict], str] = {
    ("shuffled", "passed"): "where there is no information, nothing is read; the size of other estimates may still be "
    "wrong",
    ("shuffled", "failed"): "the estimate is above 0 without information: part of every estimate is not information, "
    "but comes from the estimator, or from negatives that do not look like positives",
    ("data_processing", "passed"): "half of the channels does not read more than all of them",
    ("data_processing", "failed"): "half of the channels reads more than all of them: the critic is not the best for "
    "its own latents, so a lower bound is loose, and another estimate is wrong",
    ("data_processing", "limited by the ceiling"): "even half of the channels reaches log N: raise N to compare them",
    ("rescaling", "passed"): "half of each score does not read more than the score",
    ("rescaling", "failed"): "half of each score reads more than the score: the critic is too sure of itself on these "
    "data, so a lower bound is loose, and another estimate is wrong",
    ("rescaling", "limited by the ceiling"): "even half of each score reaches log N: raise N to compare them",
    ("additivity", "passed"): "two independent parts read the sum of both",
    ("additivity", "failed"): "two independent parts do not read the sum of both: estimates of this size do not "
    "compare",
    (
        "additivity",
        "limited by the ceiling",
    ): "N candidates cannot show the sum of both parts: raise N for estimates of this size",
}
_NOT_MEASURED = (
    "no finite estimate, or too large an error: raise num_batches (two at least), or `batch_size` (pairs need four "
    "independent sequences in a batch)"
)


class SelfChecks:
    """Checks of the estimates of every step over batches, a callback for `measured_tallies`.

    The channels that processed latents keep are sampled once, and stay for all batches, steps and estimators. The
    checks have their own random numbers, so bounds and estimates are the same with and without them.

    Args:
        model: the model whose queries score.
        estimators: names in `cpc.evaluation.READABLE`.
        protocols: protocols; those of other strategies than `mixed_excluding` are left out.
        seed: seed of channels, rows, shuffled positives, pairs and negatives.
        keeps_groups: see `checked_rows`.
    """

    def __init__(
        self,
        model: CPC,
        estimators: Sequence[str],
        protocols: Iterable[EvalProtocol],
        *,
        seed: int,
        keeps_groups: bool,
    ) -> None:
        self.model, self.estimators, self.keeps_groups = model, tuple(estimators), keeps_groups
        self.protocols = [protocol for protocol in protocols if protocol.strategy == STRATEGY]
        self.generators = {protocol: torch.Generator().manual_seed(seed) for protocol in self.protocols}
        self.seed = seed
        keys = [(protocol, name, step) for protocol in self.protocols for name in estimators for step in model.steps]
        names = ("plain", "processed", "rescaled", "shuffled", "first", "second", "pair")
        self.tallies = {key: {name: ReadingTally() for name in names} for key in keys}
        self.num_candidates = {key: dict.fromkeys(names, 0) for key in keys}  # sums over rows

    def __call__(self, protocol: EvalProtocol, output: Output, batch: Batch) -> None:
        """Add the model's output for a batch."""
        if protocol not in self.generators:
            return
        needs_baseline = {name: ESTIMATORS[name].needs_baseline for name in self.estimators}
        for direction, predicted in enumerate(predictions(output, self.model.lengths_in_latents(batch))):
            for has_baseline in sorted(set(needs_baseline.values())):
                for step_index, rows in checked_rows(
                    *predicted,
                    self._channels(predicted.latents.shape[-1]),
                    generator=self.generators[protocol],
                    num_negatives=protocol.num_negatives,
                    steps=self.model.loss_part.query_steps(output),
                    has_baseline=has_baseline,
                    keeps_groups=self.keeps_groups,
                ):
                    step = self.model.steps[direction * len(predicted.queries) + step_index]
                    for name in (name for name, needs in needs_baseline.items() if needs == has_baseline):
                        self._add((protocol, name, step), rows)

    def _add(self, key: tuple[EvalProtocol, str, Step], checked: CheckedRows) -> None:
        name = key[1]
        rows: dict[str, ScoredRows | None] = {"plain": checked.plain, "processed": checked.processed}
        rows["rescaled"] = checked.plain._replace(scores=checked.plain.scores / 2)
        rows["shuffled"] = checked.shuffled
        if checked.parts is not None:
            rows["first"], rows["second"] = checked.parts
            rows["pair"] = pair_of(checked.parts, ESTIMATORS[name].best_offset)
        for kind, each in rows.items():
            if each is not None:
                self.tallies[key][kind].update(read_rows(name, each))
                self.num_candidates[key][kind] += each.num_candidates

    def _channels(self, dim: int) -> torch.Tensor:
        """Return the mask of half of the channels; of an odd number one more is kept."""
        order = torch.randperm(dim, generator=torch.Generator().manual_seed(self.seed))
        return order < (dim + 1) // 2

    def records(self, protocol: EvalProtocol, split: str) -> list[dict[str, Any]]:
        """Return a record for each estimator and check, with lists over the steps; empty for other strategies.

        Values that are not finite are None.

        Args:
            protocol: a protocol.
            split: split of the data.
        """
        if protocol not in self.generators:
            return []
        return [self._record(protocol, name, check, split) for name in self.estimators for check in checks_of(name)]

    def _record(self, protocol: EvalProtocol, name: str, check: Check, split: str) -> dict[str, Any]:
        steps = self.model.steps
        checked = [self._check((protocol, name, step), check) for step in steps]
        lists = {field: [each[field] for each in checked] for field in checked[0]}
        return {
            "check": check,
            "estimator": name,
            "strategy": protocol.strategy,
            "split": split,
            "num_negatives": protocol.num_negatives,
            "steps": [step.k for step in steps],
            "directions": [step.direction for step in steps],
            **finite(lists),
        }

    def _check(self, key: tuple[EvalProtocol, str, Step], check: Check) -> dict[str, Any]:
        reading_name, reference_names = _TALLIES[check]
        tallies = self.tallies[key]
        reading, *references = (tallies[name] for name in (reading_name, *reference_names))
        num_rows = sum(reading.num_rows)
        read = referred = difference = error = num_candidates = math.nan
        if num_rows:
            (read, _), sums = reading.compute(), [tally.compute()[0] for tally in references]
            referred = math.fsum(sums)
            difference, error = weighted_sum([reading, *references], [1.0, *(-1.0 for _ in references)])
            num_candidates = self.num_candidates[key][reading_name] / num_rows
        ceiling = num_candidates if key[1] == INFO_NCE else None
        found = verdict(check, difference, error, len(reading.num_rows), read, referred, ceiling)
        return {
            "num_batches": len(reading.num_rows),
            "num_rows": num_rows,
            "num_candidates": num_candidates,
            "reading_nats": read,
            "reference_nats": referred,
            "difference_nats": difference,
            "standard_error_nats": error,
            "ratio": read / referred if referred else math.nan,
            "verdict": found,
            "meaning": _MEANINGS.get((check, found), _NOT_MEASURED),
        }


def checks_of(estimator: str) -> tuple[Check, ...]:
    """Return the checks of an estimator that fail only by a fault.

    The mean score of positives is checked only with shuffled pairs. It adds up and is halved whatever the scores are.
    Half of the channels may drop a negative constant, without which even the scores of the exact critic read more.
    """
    return CHECKS if ESTIMATORS[estimator].reads_negatives else ("shuffled",)


def self_checks_table(records: Sequence[dict[str, Any]]) -> str:
    """Return a table of the records of one protocol: a line per estimator and step, the difference of each check."""
    estimator_checks: dict[str, dict[str, dict[str, Any]]] = {}
    for record in records:
        estimator_checks.setdefault(record["estimator"], {})[record["check"]] = record
    titles = ("shuffled - 0", "half - all channels", "half - whole scores", "pair - both parts")
    first = records[0]
    negatives = "all candidates" if first["num_negatives"] is None else f"{first['num_negatives']} negatives"
    lines = [
        f"self-checks in nats, {first['strategy']}, {negatives} (each difference, its error, and the verdict)",
        f"{'k':>8} {'estimator':>15} " + " ".join(f"{title:>25}" for title in titles),
    ]
    for index, (direction, k) in enumerate(zip(first["directions"], first["steps"], strict=True)):
        for name, checks in estimator_checks.items():
            cells = " ".join(f"{_cell(checks[check], index) if check in checks else '-':>25}" for check in CHECKS)
            lines.append(f"{Step(direction, k).name:>8} {name:>15} {cells}")
    sentences = {
        f"{record['check']} {found}: {meaning}": None
        for record in records
        for found, meaning in zip(record["verdict"], record["meaning"], strict=True)
        if found != "passed"
    }
    return "\n".join([*lines, *(f"    {sentence}" for sentence in sentences)])


def append_to_run(model_folder: str | Path, step: int | None, records: Sequence[dict[str, Any]]) -> Path | None:
    """Append the verdicts to `self_checks.jsonl` of the run that holds the model, which `cpc monitor` shows.

    Returns:
        The file; None if neither the folder nor its parent is a run's, or the step of the model is unknown.
    """
    folder = Path(model_folder)
    run = next((each for each in (folder, folder.absolute().parent) if (each / "bound.jsonl").is_file()), None)
    if run is None or step is None:
        return None
    for record in records:
        labels = [Step(*each).words for each in zip(record["directions"], record["steps"], strict=True)]
        line = {"schema": SCHEMA, "step": step} | {name: record[name] for name in _COPIED}
        append_record(run / RECORDS, line | {"labels": labels})
    return run / RECORDS


def _cell(record: dict[str, Any], index: int) -> str:
    difference, error, found = (record[field][index] for field in ("difference_nats", "standard_error_nats", "verdict"))
    if found == "not measured":
        return found
    words = {"failed": "FAILED", "limited by the ceiling": "ceiling"}.get(found, found)
    return f"{difference:+.3f} +- {error:.3f} {words}"
