"""Estimates of mutual information from a model's scores on held-out batches.

K steps.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from einops import rearrange

from cpc.bounds.estimates import Estimate, EstimateTally, pooled
from cpc.bounds.estimators import ESTIMATORS
from cpc.bounds.sequences import mean_baseline, scored_rows
from cpc.candidates import bounds_information, interpretation
from cpc.config.argument_rules import Choices
from cpc.contexts.grid import is_on_grid
from cpc.data.batch import Batch
from cpc.data.store.atomic import finite
from cpc.losses import EvalProtocol
from cpc.losses.candidate_sets import plan
from cpc.losses.contrastive import flat_queries, predicted
from cpc.model import CPC
from cpc.predictors import Output

INFO_NCE = "info_nce"
# All but mine (the value of dv), leave_one_out (needs p(z | c)), and anchor (needs a critic that it trained).
SCORE_ESTIMATORS = tuple(
    name for name, each in ESTIMATORS.items() if not each.needs_conditional and name not in ("mine", "anchor")
)


def check_estimators(estimators: Iterable[str], strategies: Iterable[str] = ()) -> None:
    """Raise ValueError if an estimator does not work with the scores of a model, or with a strategy."""
    strategies = tuple(strategies)
    for name in estimators:
        Choices(SCORE_ESTIMATORS).check("`estimators`", name)
        if ESTIMATORS[name].needs_baseline and "sequence_only" in strategies:
            reason = "whose baseline takes half of the sequences; with negatives=sequence_only there is only one"
            raise ValueError(f"estimators names {name!r}, {reason}")


class HeldOutEstimates:
    """Estimates of every step over batches, a callback for `held_out_bounds`.

    Every estimator uses the model's scores. InfoNCE determines scores only up to a constant per row. TUBA and I_alpha
    estimate this constant from half of the sequences that negatives come from, and use the other half for the estimate.
    All other estimators use the raw scores, so most of their estimates are too low. `generators` are those of the
    negatives, by protocol.
    """

    def __init__(
        self, model: CPC, estimators: Sequence[str], generators: Mapping[EvalProtocol, torch.Generator]
    ) -> None:
        self.model, self.estimators, self.generators = model, tuple(estimators), generators
        keys = [(protocol, name) for protocol in generators for name in estimators]
        self.tallies = {key: [EstimateTally() for _ in model.steps] for key in keys}
        self.num_candidates = {key: [0] * len(model.steps) for key in keys}  # sums over rows

    def __call__(self, protocol: EvalProtocol, output: Output, batch: Batch) -> None:
        """Add the model's output for a batch."""
        estimates: dict[tuple[str, int], list[Estimate]] = {}
        latents, sequences = rearrange(predicted(output), "b ... d -> (b ...) d"), self.model.sequences(output, batch)
        rows, _ = plan(protocol.strategy, sequences._replace(device=torch.device("cpu")))
        needs_baseline = {name: ESTIMATORS[name].needs_baseline for name in self.estimators}
        for has_baseline in sorted(set(needs_baseline.values())):
            names = [name for name, needs in needs_baseline.items() if needs == has_baseline]
            ids, generator = sequences.ids if has_baseline else None, self.generators[protocol]
            found = scored_rows(
                flat_queries(output), latents, rows, ids, num_negatives=protocol.num_negatives, generator=generator
            )
            for step, scored in found:
                for name in names:
                    scores, positives, candidates, baseline = scored
                    options = {"log_baseline": mean_baseline(scores, baseline)} if has_baseline else {}
                    estimate = ESTIMATORS[name].estimate(scores, positives, candidates, **options)
                    estimates.setdefault((name, step), []).append(estimate)
                    self.num_candidates[protocol, name][step] += scored.num_candidates
        for (name, step), parts in estimates.items():
            self.tallies[protocol, name][step].update(pooled(parts))

    def record(self, protocol: EvalProtocol, name: str, split: str) -> dict[str, Any]:
        """Return the record of an estimator, with lists over the steps; values that are not finite are None."""
        tallies = self.tallies[protocol, name]
        estimates = [tally.compute() if tally.num_rows else (math.nan, math.nan) for tally in tallies]
        nats, errors = zip(*estimates, strict=True)
        num_rows = [sum(tally.num_rows) for tally in tallies]
        counts = zip(self.num_candidates[protocol, name], num_rows, strict=True)
        is_grid = is_on_grid(step.direction for step in self.model.steps)
        is_bound = bounds_information(protocol.strategy) and not is_grid
        return {
            "estimator": name,
            "side": ESTIMATORS[name].side if is_bound else "neither",
            "strategy": protocol.strategy,
            "split": split,
            "num_negatives": protocol.num_negatives,
            "baseline": "half of the sequences" if ESTIMATORS[name].needs_baseline else None,
            "steps": [step.k for step in self.model.steps],
            "directions": [step.direction for step in self.model.steps],
            "num_batches": max(len(tally.num_rows) for tally in tallies),
            "num_rows": num_rows,
            "num_candidates": [candidates / rows if rows else None for candidates, rows in counts],
            "estimate_nats": finite(nats),
            "standard_error_nats": finite(errors),
            "reading": interpret(name, protocol.strategy, is_grid),
        }


def interpret(name: str, strategy: str, is_grid: bool = False) -> str:
    """Return what an estimator estimates with this strategy; `is_grid`: latents are patches."""
    text = interpretation(strategy, is_grid)
    return text.replace("lower bound on", "estimate of") if ESTIMATORS[name].side == "neither" else text
