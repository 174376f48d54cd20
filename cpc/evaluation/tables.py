"""Tables and the figure of bounds and other estimates, made from their records (docs/records.md)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cpc.bounds.bound import FULL_SOFTMAX, steps_of
from cpc.data.figure_text import figure_text
from cpc.pages.report import Table, number
from cpc.predictors import Step

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOT_RECORDED = Table((), (), "held-out log N - L: not recorded with this model; measure it with cpc evaluate")


def bound_table(record: dict[str, Any]) -> Table:
    """Return the table of a bound, with a row for each step and, where the record has advice, a note for it."""
    is_of_classes = record["strategy"] == FULL_SOFTMAX
    columns = [
        ("mi_bound_nats", "H - L" if is_of_classes else "log N - L", 3),
        ("standard_error_nats", "+-", 3),
        ("mi_ceiling_nats", "ceiling", 3),
        ("loss_nats", "loss", 3),
        ("num_candidates", "N", 0),
        ("accuracy", "accuracy", 3),
        *([("perplexity", "perplexity", 2)] if is_of_classes else []),
    ]
    keys, header, digits = zip(*(column for column in columns if column[0] in record), strict=True)  # of older releases
    names = [step.name for step in steps_of(record)]
    cells = [[number(value, places) for value in record[key]] for key, places in zip(keys, digits, strict=True)]
    rows = [list(row) for row in zip(names, *cells, strict=True)]
    if len(rows) > 1:
        rows.append(["mean", *(_mean(record[key]) if key.startswith("mi_") else "" for key in keys)])
    advice, saturated, biased = (record.get(key) or [""] * len(names) for key in ("advice", "saturated", "biased"))
    batches = f", {record['num_batches']} batches" if "num_batches" in record else ""
    return Table(
        ["k", *header],
        rows,
        f"{header[0]} in nats, {record['strategy']} on {record['split']!r}{batches} ({record['reading']})",
        [
            f"k = {name} is {'saturated' if is_saturated else 'biased'}: {text}".rstrip(": ")
            for name, is_saturated, is_biased, text in zip(names, saturated, biased, advice, strict=True)
            if is_saturated or is_biased
        ],
    )


def estimates_table(records: Sequence[dict[str, Any]]) -> Table:
    """Return the table of the estimates of one strategy, with a row for each step and a column for each estimator."""
    first = records[0]
    steps = [Step(direction, k).name for direction, k in zip(first["directions"], first["steps"], strict=True)]
    cells = [
        [
            f"{number(nats)} +- {number(error)}" if nats is not None else number(nats)
            for nats, error in zip(record["estimate_nats"], record["standard_error_nats"], strict=True)
        ]
        for record in records
    ]
    negatives = "all candidates" if first["num_negatives"] is None else f"{first['num_negatives']} negatives"
    return Table(
        ["k", *(record["estimator"] for record in records)],
        [list(row) for row in zip(steps, *cells, strict=True)],
        f"further estimates in nats, {first['strategy']}, {negatives}",
        [f"{record['estimator']}: {record['reading']}" for record in records],
    )


def draw_bounds(records: Sequence[dict[str, Any]], figure: "Figure") -> None:
    """Draw the bounds by step k, with two standard errors, below their ceilings."""
    axes = figure.subplots()
    names = [step.name for step in steps_of(records[0])]
    for index, record in enumerate(records):
        colour, negatives = f"C{index}", record.get("num_negatives")
        label = record["strategy"] if negatives is None else f"{record['strategy']}, {negatives} negatives"
        points, ceilings = (np.array(record[key], float) for key in ("mi_bound_nats", "mi_ceiling_nats"))
        errors = [2 * (error or 0) for error in record["standard_error_nats"]]
        axes.errorbar(names, points, errors, fmt="o-", color=colour, label=figure_text(label))
        axes.plot(names, ceilings, "--", color=colour, linewidth=1)
    axes.set(xlabel="k, steps ahead", ylabel=f"{bound_table(records[0]).header[1]}, nats (dashed: ceiling)")
    axes.legend()


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return number(sum(known) / len(known) if known else None)
