"""The latest values of all runs for Prometheus; docs/grafana.json is a dashboard of these values."""

import time
from collections.abc import Sequence
from types import SimpleNamespace

from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily

from cpc.monitor.badges import NAMES, badges
from cpc.monitor.library import Library
from cpc.monitor.record_types import BOUND, PROBE, RECORD_TYPES
from cpc.monitor.run import Run


def prometheus_text(library: Library) -> bytes:
    """Return gauges `cpc_*`, labelled by run, in the text format of Prometheus; unknown values are left out."""
    with library.lock:
        families = library.skip_unreadable(list(library.runs.values()), _families)
    return generate_latest(SimpleNamespace(collect=lambda: families))


def _families(runs: Sequence[Run]) -> list[GaugeMetricFamily]:
    """Return the gauges of all runs; a deleted run has only its badges, because its values are out of date."""
    step = GaugeMetricFamily("cpc_step", "optimiser steps at the last training record", labels=["run"])
    badge_family = GaugeMetricFamily("cpc_badge", "1 if the badge applies to the run, else 0", labels=["run", "badge"])
    for run in runs:
        active = {badge for badge, _ in badges(run, time.monotonic())}
        for name in NAMES:
            badge_family.add_metric([run.name, name], float(name in active))
    families, present = [step, badge_family], [run for run in runs if not run.is_deleted]
    for run in present:
        for table in run.current_tables():
            if table.key.names[0] == "train":
                step.add_metric([run.name], table.last_mean("step"))
    for record_type in RECORD_TYPES:
        labels = ["run", *record_type.key, *(("direction", "k") if record_type.per_step else ())]
        for name, text in record_type.numbers.items():
            family = GaugeMetricFamily(f"cpc_{'probe_' * (record_type is PROBE)}{name}", text, labels=labels)
            families.append(family)
            for run in present:
                for table in run.current_tables() if record_type is BOUND else run.tables(record_type):
                    values = table.last.get(name) if record_type.per_step else [table.last.get(name)]
                    places = zip(table.key.directions, map(str, table.key.steps), strict=True)
                    for place, value in zip(places if record_type.per_step else [()], values or (), strict=False):
                        if value is not None:
                            family.add_metric([run.name, *table.key.names, *place], value)
    return families
