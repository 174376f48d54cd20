"""What a glance at a run should tell: saturated, biased, stalled, stale, NaN, collapsed, and how it ended.

n records.
"""

import math
from typing import NamedTuple

import numpy as np

from cpc.monitor.record_types import EVENT, HEALTH
from cpc.monitor.run import Run
from cpc.monitor.table import Table

SATURATION_NATS = 0.3
STALLED_NATS = 0.01
STALLED_RECORDS = 40  # below, a slow start would be called a standstill
STALE_SECONDS = 120.0
STALE_INTERVALS = 5.0
SLOW_START_SECONDS = 600.0  # of silence before a run whose pace nobody knows yet is called stale


class Badge(NamedTuple):
    """A word, and the sentence behind it."""

    name: str
    reason: str


NAMES = ("saturated", "biased", "stalled", "stale", "NaN", "collapsed", "failed", "interrupted", "finished", "deleted")


def badges(run: Run, now_seconds: float) -> list[Badge]:
    """What there is to say about a run, the worst first.

    - NaN: the last record of a curve has a value that is not finite where there were rows, or training stopped on one.
    - collapsed: the last line of health.jsonl says so of z or c.
    - failed, interrupted, finished, deleted: how it ended.
    - stale: neither ended nor written to for two minutes and five times its usual interval; for ten minutes as long as
      there are fewer than two lines of health.jsonl to tell the interval by.
    - stalled: see `stalled_for`.
    - saturated, biased: steps k of which the last record says so.

    `now_seconds` is of `time.monotonic`.
    """
    last_event = next((table.last for table in run.tables(EVENT)), {})
    ending, told = last_event.get("event", ""), last_event.get("message", "")
    found = []
    if run.is_deleted:
        found.append(Badge("deleted", "its folder is gone; what had been read is still shown, in part"))
    found += [Badge("NaN", reason) for reason in ([told] if ending == "not_finite" else _not_finite(run))]
    if ending == "failed":
        found.append(Badge("failed", told))
    for table in run.tables(HEALTH):
        if collapsed := table.last.get("collapsed"):
            found.append(Badge("collapsed", f"{' and '.join(collapsed)}: inputs are hardly told apart any more"))
    if ending in ("", "started", "resumed"):
        silence, interval = seconds_since_write(run, now_seconds), _usual_interval_seconds(run)
        patience = SLOW_START_SECONDS if interval is None else max(STALE_SECONDS, STALE_INTERVALS * interval)
        if silence > patience:
            slow = "; its usual pace is not known yet" if interval is None else ""
            found.append(Badge("stale", f"no record for {format_seconds(silence)}, and no word of an end{slow}"))
    tables = run.current_tables()
    standstills = [stalled_for(table) for table in tables if table.key.names[0] == "train"]
    found += [Badge("stalled", standstill) for standstill in standstills if standstill]
    for name, text in (
        ("saturated", "within 0.3 nats of the ceiling log N"),
        ("biased", "for Gaussians and an exact critic the information would be 0.3 nats or more above the reading"),
    ):
        flagged = [f"{' '.join(t.key.names)} at {', '.join(steps)}" for t in tables if (steps := _flagged(t, name))]
        if flagged:
            advice = "more candidates (batch size, num_negatives) would show more"
            found.append(Badge(name, f"{text}: {'; '.join(flagged)}: {advice}"))
    if ending in ("interrupted", "finished"):
        found.append(Badge(ending, f"at step {run.tables(EVENT)[0].last_mean('step'):.0f}"))
    return found


def stalled_for(table: Table) -> str:
    """Why log N - L of training is called stalled; empty if it is not, or has fewer than 40 records.

    Stalled: from the third to the last quarter of the records the mean over k rose by less than 0.01 nats, or by less
    than two standard errors of the difference, and it lies more than 0.3 nats below the ceiling.
    A run that has learnt all it can is stalled too: the word says that going on as before will not change much.
    """
    bound = table.means["mi_bound_nats"]
    if len(bound) < STALLED_RECORDS:
        return ""
    quarter = len(bound) // 4
    before, after = bound[-2 * quarter : -quarter], bound[-quarter:]
    before, after = before[np.isfinite(before)], after[np.isfinite(after)]
    if min(len(before), len(after)) < 2:
        return ""
    rise = float(after.mean() - before.mean())
    noise = math.sqrt(before.var(ddof=1) / len(before) + after.var(ddof=1) / len(after))
    is_below = float(table.last_mean("mi_ceiling_nats") - bound[-1]) > SATURATION_NATS
    if rise >= max(STALLED_NATS, 2 * noise) or not is_below:
        return ""
    steps = table.means["step"]
    return (
        f"log N - L of training changed by {rise:+.3f} nats over the last {steps[-1] - steps[-2 * quarter]:.0f} steps"
    )


def format_seconds(seconds: float) -> str:
    """A length of time in its largest unit: `45 s`, `3 min`, `5 h`, `2 d`."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def seconds_since_write(run: Run, now_seconds: float) -> float:
    """Since the last write to one of its files; 0 where there is none. `now_seconds` is of `time.monotonic`."""
    return 0.0 if run.changed_at is None else max(0.0, now_seconds - run.changed_at)


def _not_finite(run: Run) -> list[str]:
    found = []
    for table in run.current_tables():
        words, num_rows = table.key.step_words, table.last.get("num_rows", [])
        losses = zip(words, num_rows, table.last.get("loss_nats", []), strict=False)
        broken = [word for word, rows, loss in losses if loss is None and rows]
        if broken:
            found.append(f"the loss of {' '.join(table.key.names)} is not finite at {', '.join(broken)}")
    for table in run.tables(HEALTH):
        if table.last.get("gradient_norm", 0.0) is None:
            found.append(f"the gradient's norm is not finite at step {table.last_mean('step'):.0f}")
    return found


def _flagged(table: Table, name: str) -> list[str]:
    """Steps that the last record flags."""
    return [words for words, flag in zip(table.key.step_words, table.last.get(name, []), strict=False) if flag]


def _usual_interval_seconds(run: Run) -> float | None:
    """Between two lines of health.jsonl; None where there are fewer."""
    times = np.array([time for table in run.tables(HEALTH) for time in table.means["time_unix_seconds"][-20:]])
    times = times[np.isfinite(times)]
    return float(np.median(np.diff(times))) if len(times) > 1 else None
