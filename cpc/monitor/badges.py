"""Badges of runs: saturated, biased, stalled, stale, NaN, collapsed, and how a run ended."""

import math

import numpy as np

from cpc.monitor.record_types import EVENT, HEALTH
from cpc.monitor.run import Run
from cpc.monitor.table import Table

SATURATION_NATS = 0.3
STALLED_NATS = 0.01
STALLED_RECORDS = 40  # minimum number of records; with fewer, a slow start would count as stalled
STALE_SECONDS = 120.0
STALE_INTERVALS = 5.0
SLOW_START_SECONDS = 600.0  # without a record, for stale runs whose usual interval is unknown
NAMES = ("saturated", "biased", "stalled", "stale", "NaN", "collapsed", "failed", "interrupted", "finished", "deleted")


def badges(run: Run, now_seconds: float) -> list[tuple[str, str]]:
    """Return the badges of a run with their reasons, the worst first; `now_seconds` is a time of `time.monotonic`.

    - NaN: a value in the last record of a curve is not finite although there were rows, or training stopped for this.
    - collapsed: the last record of health.jsonl flags z or c.
    - failed, interrupted, finished, deleted: how the run ended.
    - stale: the run has not ended, and nothing was written for two minutes and for five times its usual interval. If
    health.jsonl has fewer than two records, the limit is ten minutes.
    - stalled: see `why_stalled`.
    - saturated, biased: the last record flags some steps k.
    """
    last_event = next((table.last for table in run.tables(EVENT)), {})
    event, message = last_event.get("event", ""), last_event.get("message", "")
    found = []
    if run.is_deleted:
        found.append(("deleted", "the folder was deleted; some records that were read before are still shown"))
    found += [("NaN", reason) for reason in ([message] if event == "not_finite" else _non_finite_values(run))]
    if event == "failed":
        found.append(("failed", message))
    for table in run.tables(HEALTH):
        if collapsed := table.last.get("collapsed"):
            found.append(("collapsed", f"{' and '.join(collapsed)}: almost equal for all inputs"))
    if event in ("", "started", "resumed"):
        silence, interval = seconds_since_write(run, now_seconds), _usual_interval_seconds(run)
        limit = SLOW_START_SECONDS if interval is None else max(STALE_SECONDS, STALE_INTERVALS * interval)
        if silence > limit:
            slow = "; its usual interval is not known yet" if interval is None else ""
            found.append(("stale", f"no record for {format_seconds(silence)}, and no record of an end{slow}"))
    tables = run.current_tables()
    reasons = [why_stalled(table) for table in tables if table.key.names[0] == "train"]
    found += [("stalled", reason) for reason in reasons if reason]
    for name, text in (
        ("saturated", "within 0.3 nats of the ceiling log N"),
        ("biased", "for Gaussians and an exact critic the information would be 0.3 nats or more above log N - L"),
    ):
        flagged = [f"{' '.join(t.key.names)} at {', '.join(steps)}" for t in tables if (steps := _flagged(t, name))]
        if flagged:
            advice = "raise the number of candidates (batch size, num_negatives)"
            found.append((name, f"{text}: {'; '.join(flagged)}: {advice}"))
    if event in ("interrupted", "finished"):
        found.append((event, f"at step {run.tables(EVENT)[0].last_mean('step'):.0f}"))
    return found


def why_stalled(table: Table) -> str:
    """Return why log N - L of training is stalled; empty if it is not, or if there are fewer than 40 records.

    The last quarter of the means over k is compared with the third quarter. A run is stalled if they rose by less than
    0.01 nats, or by less than two standard errors of the difference, and are more than 0.3 nats below the ceiling. A
    converged run is also stalled.
    """
    bound, steps = table.means["mi_bound_nats"].astype(float), table.means["step"]  # float32 overflows in squares
    quarter = len(bound) // 4
    before, after = (part[np.isfinite(part)] for part in (bound[-2 * quarter : -quarter], bound[-quarter:]))
    if len(bound) < STALLED_RECORDS or min(len(before), len(after)) < 2:
        return ""
    rise = float(after.mean() - before.mean())
    noise = math.sqrt(before.var(ddof=1) / len(before) + after.var(ddof=1) / len(after))
    is_below = float(table.last_mean("mi_ceiling_nats") - bound[-1]) > SATURATION_NATS
    if rise >= max(STALLED_NATS, 2 * noise) or not is_below:
        return ""
    return (
        f"log N - L of training changed by {rise:+.3f} nats over the last {steps[-1] - steps[-2 * quarter]:.0f} steps"
    )


def format_seconds(seconds: float) -> str:
    """Return a duration in its largest unit: `45 s`, `3 min`, `5 h`, `2 d`."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def seconds_since_write(run: Run, now_seconds: float) -> float:
    """Return the time since the last write to the run's files, or 0 if it has no files."""
    return 0.0 if run.changed_at is None else max(0.0, now_seconds - run.changed_at)


def _non_finite_values(run: Run) -> list[str]:
    reasons = []
    for table in run.current_tables():
        num_rows, losses = table.last.get("num_rows", []), table.last.get("loss_nats", [])
        steps = zip(table.key.step_labels, num_rows, losses, strict=False)
        broken = [label for label, rows, loss in steps if loss is None and rows]
        if broken:
            reasons.append(f"the loss of {' '.join(table.key.names)} is not finite at {', '.join(broken)}")
    for table in run.tables(HEALTH):
        if table.last.get("gradient_norm", 0.0) is None:
            reasons.append(f"the gradient's norm is not finite at step {table.last_mean('step'):.0f}")
    return reasons


def _flagged(table: Table, name: str) -> list[str]:
    return [label for label, flag in zip(table.key.step_labels, table.last.get(name, []), strict=False) if flag]


def _usual_interval_seconds(run: Run) -> float | None:
    times = np.array([time for table in run.tables(HEALTH) for time in table.means["time_unix_seconds"][-20:]])
    times = times[np.isfinite(times)]
    return float(np.median(np.diff(times))) if len(times) > 1 else None
