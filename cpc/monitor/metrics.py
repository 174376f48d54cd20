"""The latest values of all runs for Prometheus (docs/grafana.json is a board over them)."""

import time
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from cpc.monitor.badges import NAMES, badges
from cpc.monitor.kinds import BOUND, KINDS, PROBE
from cpc.monitor.library import Library
from cpc.monitor.run import Run


def exposition(library: Library) -> bytes:
    """Prometheus' text format: gauges `cpc_*`, labelled by run; unknown values are left out."""
    with library.lock:
        families = library.of_sound(list(library.runs.values()), _families)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(families))
    return generate_latest(registry)


class _Collected(Collector):
    def __init__(self, families: list[GaugeMetricFamily]) -> None:
        self.families = families

    def collect(self) -> list[GaugeMetricFamily]:
        return self.families


def _families(runs: Sequence[Run]) -> list[GaugeMetricFamily]:
    """Of runs that are deleted, the badge alone: their values are not the latest of anything."""
    tables = [
        (run.name, kind, table)
        for run in runs
        if not run.is_deleted
        for kind in KINDS
        for table in (run.current() if kind is BOUND else run.tables(kind))
    ]
    step = GaugeMetricFamily("cpc_step", "optimiser steps at the last training record", labels=["run"])
    for run_name, kind, table in tables:
        if kind is BOUND and table.key.names[0] == "train":
            step.add_metric([run_name], table.last_mean("step"))
    found = [step]
    for kind in KINDS:
        labels = ["run", *kind.key, *(("direction", "k") if kind.per_step else ())]
        for name, text in kind.numbers.items():
            family = GaugeMetricFamily(f"cpc_{'probe_' * (kind is PROBE)}{name}", text, labels=labels)
            found.append(family)
            for run_name, of, table in tables:
                if of is not kind or (value := table.last.get(name)) is None:
                    continue
                names = [run_name, *table.key.names]
                if not kind.per_step:
                    family.add_metric(names, value)
                    continue
                for direction, k, each in zip(table.key.directions, table.key.steps, value, strict=True):
                    if each is not None:
                        family.add_metric([*names, direction, str(k)], each)
    badge = GaugeMetricFamily("cpc_badge", "1 where the badge applies to the run, else 0", labels=["run", "badge"])
    for run in runs:
        now = {each.name for each in badges(run, time.monotonic())}
        for name in NAMES:
            badge.add_metric([run.name, name], float(name in now))
    return [*found, badge]
