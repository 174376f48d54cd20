"""The latest values of all runs for Prometheus (docs/grafana.json is a board over them)."""

import time
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily

from cpc.monitor.badges import NAMES, badges
from cpc.monitor.kinds import HEALTH, PROBE
from cpc.monitor.library import Library
from cpc.monitor.newest import current
from cpc.monitor.run import Run

OF_BOUND = {
    "mi_bound_nats": "log N - L; cpc_candidates says among how many, the strategy whether it is a bound",
    "mi_ceiling_nats": "log N, which log N - L cannot exceed",
    "standard_error_nats": "standard error of log N - L over batches",
    "loss_nats": "InfoNCE loss L",
    "accuracy": "rate at which no negative scores higher than the positive",
    "num_candidates": "N, the positive included",
}
OF_PROBE = {
    "accuracy": "accuracy of the online probe",
    "majority_accuracy": "accuracy of always naming the most frequent class",
    "label_information_nats": "H(Y) - CE of the online probe",
    "label_entropy_nats": "H(Y) of the labels tested on",
}
OF_HEALTH = {
    "time_unix_seconds": "when the last line of health.jsonl was written",
    "trained_seconds": "wall time of training so far",
    "windows_per_second": "windows or images trained on per second",
    "learning_rate": "of the optimiser's last step",
    "gradient_norm": "mean norm of the gradient before clipping, since the record before",
    "gradient_norm_max": "largest norm of the gradient before clipping, since the record before",
    "z_variance": "variance of the latents, mean over dimensions",
    "c_variance": "variance of the contexts, mean over dimensions",
    "z_effective_rank": "dimensions that the latents fill",
    "c_effective_rank": "dimensions that the contexts fill",
}


def exposition(library: Library) -> bytes:
    """Prometheus' text format: gauges `cpc_*`, labelled by run; values that are unknown are left out or NaN."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(library))
    return generate_latest(registry)


class _Collector:
    def __init__(self, library: Library) -> None:
        self.library = library

    def collect(self) -> Iterator[GaugeMetricFamily]:
        with self.library.lock:
            yield from self.library.of_sound(list(self.library.runs.values()), _families)


def _families(runs: Sequence[Run]) -> list[GaugeMetricFamily]:
    """Of runs that are deleted, the badge alone: their values are not the latest of anything."""
    present = [run for run in runs if not run.is_deleted]
    step = GaugeMetricFamily("cpc_step", "optimiser steps at the last training record", labels=["run"])
    for run in present:
        for table in current(run):
            if table.key.names[0] == "train":
                step.add_metric([run.name], table.last_mean("step"))
    found = [step, *_of_bounds(present)]
    for name, text in OF_PROBE.items():
        found.append(GaugeMetricFamily(f"cpc_probe_{name}", text, labels=["run", "task", "features"]))
        for run in present:
            for table in run.tables(PROBE):
                found[-1].add_metric([run.name, *table.key.names], table.last_mean(name))
    for name, text in OF_HEALTH.items():
        found.append(GaugeMetricFamily(f"cpc_{name}", text, labels=["run"]))
        for run in present:
            for table in run.tables(HEALTH):
                found[-1].add_metric([run.name], table.last_mean(name))
    return [*found, _of_badges(runs)]


def _of_bounds(runs: Sequence[Run]) -> Iterator[GaugeMetricFamily]:
    for name, text in OF_BOUND.items():
        labels = ["run", "split", "strategy", "direction", "k"]
        family = GaugeMetricFamily(f"cpc_{name}", text, labels=labels)
        for run in runs:
            for table in current(run):
                values = table.last.get(name) or []
                for direction, k, value in zip(table.key.directions, table.key.steps, values, strict=False):
                    if value is not None:
                        family.add_metric([run.name, *table.key.names, direction, str(k)], value)
        yield family


def _of_badges(runs: Sequence[Run]) -> GaugeMetricFamily:
    family = GaugeMetricFamily("cpc_badge", "1 where the badge applies to the run, else 0", labels=["run", "badge"])
    now = time.monotonic()
    for run in runs:
        found = {badge.name for badge in badges(run, now)}
        for name in NAMES:
            family.add_metric([run.name, name], float(name in found))
    return family
