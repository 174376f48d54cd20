"""The charts of the page: which records each of them draws.

n records, K steps.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cpc.monitor.figure import GREY, Chart, Series, heat_map, line_chart, step_colours
from cpc.monitor.record_types import BOUND, HEALTH, PROBE, RETURNS, RecordType
from cpc.monitor.profile import profile_chart
from cpc.monitor.run import Run
from cpc.monitor.table import Table
from cpc.monitor.view import View

BY_RUN = ("steps", "heat", "profile")
MAX_NAMES = 8  # of runs, in a caption
_DASHES = ("solid", "dash", "dashdot", "longdash")
_CEILING = ("mi_ceiling_nats", "ceiling log N = {}")


class ChartSpec(NamedTuple):
    """A chart of all runs: numbers of one kind of record over training."""

    name: str  # its place on the page
    title: str
    axis: str  # `{unit}` is the unit of information
    caption: str  # how to read it; `{readings}` says what the curves are
    record_type: RecordType
    fields: dict[str, str]  # and the words that follow the run's name
    reference: tuple[str, str] | None = None  # a field drawn in grey, and its words; `{}` is its last value
    error: str = ""  # a field drawn as a band
    may_be_log: bool = False  # all values are positive
    from_zero: bool = True  # where a linear axis begins


def _health_spec(name: str, title: str, axis: str, caption: str, **fields: str) -> ChartSpec:
    return ChartSpec(name, title, axis, caption, HEALTH, fields, may_be_log=True)


CHART_SPECS = (
    ChartSpec(
        "bound",
        "log N - L, mean over the steps k",
        "log N - L ({unit})",
        "{readings} Dashed: the ceiling log N, which no critic exceeds. Bands (of few curves, not smoothed): one "
        "standard error, as if the errors of all k were one.",
        BOUND,
        {"mi_bound_nats": ""},
        _CEILING,
        error="standard_error_nats",
    ),
    ChartSpec(
        "loss",
        "Loss",
        "L ({unit})",
        "InfoNCE loss L, mean over the steps k. It grows with N, up to log N of a model that knows nothing: losses of "
        "different N are not comparable.",
        BOUND,
        {"loss_nats": ""},
        may_be_log=True,
        from_zero=False,
    ),
    ChartSpec(
        "accuracy",
        "Accuracy",
        "accuracy (%)",
        "Share of rows in which no negative scores higher than the positive, ties shared; mean over the steps k. "
        "Dashed: chance, 1/N, which is what a collapsed encoder reaches.",
        BOUND,
        {"accuracy": ""},
        ("chance_accuracy", "chance 1/N = {} %"),
    ),
    ChartSpec(
        "probe",
        "Accuracy of the online probe",
        "accuracy (%)",
        "A linear probe that learns beside pretraining, on held-out batches. Dashed: always naming the most frequent "
        "class.",
        PROBE,
        {"accuracy": ""},
        ("majority_accuracy", "majority = {} %"),
    ),
    ChartSpec(
        "information",
        "Label information H(Y) - CE",
        "H(Y) - CE ({unit})",
        "A lower bound on what the features say about the labels, certified by the probe at the same checkpoints as "
        "the held-out log N - L. Dashed: H(Y), all there is to say.",
        PROBE,
        {"label_information_nats": ""},
        ("label_entropy_nats", "H(Y) = {}"),
    ),
    _health_spec(
        "rank",
        "Effective rank of z and c",
        "effective rank",
        "How many dimensions latents and contexts fill: exp of the entropy of their normalised singular values, on one "
        "batch. Near 1 the encoder has collapsed.",
        z_effective_rank=": z",
        c_effective_rank=": c",
    ),
    _health_spec(
        "variance",
        "Variance of z and c",
        "variance",
        "Over one batch, mean over the dimensions.",
        z_variance=": z",
        c_variance=": c",
    ),
    _health_spec(
        "gradient",
        "Norm of the gradient",
        "gradient norm",
        "Before clipping: mean and largest since the record before.",
        gradient_norm=": mean",
        gradient_norm_max=": largest",
    ),
    _health_spec(
        "speed",
        "Throughput",
        "examples per second",
        "Examples trained on per second, on all ranks, without evaluation and saving.",
        windows_per_second="",
    ),
    _health_spec("rate", "Learning rate", "learning rate", "The optimiser's last step used it.", learning_rate=""),
    ChartSpec(
        "return",
        "Return",
        "mean return",
        "Of an agent: mean sum of rewards of the episodes that ended since the record before, by steps of all its "
        "environments together.",
        RETURNS,
        {"mean_return": ""},
        from_zero=False,
    ),
)
NAMES = ("bound", *BY_RUN, *(spec.name for spec in CHART_SPECS[1:]))


def charts(runs: Sequence[Run], view: View, names: Sequence[str] = NAMES) -> list[Chart]:
    """The charts of these names, in the order of `NAMES`."""
    focus = next((run for run in runs if run.name == view.focus), next(iter(runs), None))
    found = {spec.name: _chart(spec, runs, view) for spec in CHART_SPECS if spec.name in names}
    if set(names) & set(BY_RUN):
        found |= {chart.name: chart for chart in (*_step_charts(focus, view), profile_chart(focus, view))}
    return [found[name] for name in NAMES if name in names]


def _chart(spec: ChartSpec, runs: Sequence[Run], view: View) -> Chart:
    record_type, series = spec.record_type, []
    tables = {run: [run.bound(view)] if record_type is BOUND else run.tables(record_type) for run in runs}
    curves = [(run, table) for run in runs for table in tables[run] if table]
    # Of several strategies one curve may be a bound and another not.
    are_named = record_type is PROBE or (record_type is BOUND and len({table.key.names for _, table in curves}) > 1)
    for run, same in itertools.groupby(curves, key=lambda curve: curve[0]):
        dashes = itertools.cycle(_DASHES)
        for _, table in same:
            name = run.name
            if are_named:
                name += f" ({table.key.names[1]})" if record_type is BOUND else f": {' from '.join(table.key.names)}"
            error = view.factor(spec.error) * table.means[spec.error] if spec.error else None
            for field, words in spec.fields.items():
                values = view.factor(field) * table.means[field]
                series.append(Series(name + words, table.means["step"], values, run.colour, next(dashes), error))
    if spec.reference:
        series += _reference_lines([table for _, table in curves], *spec.reference, view)
    return line_chart(
        spec.name,
        spec.title,
        spec.caption.format(readings=_how_to_read(curves) if record_type is BOUND else ""),
        spec.axis.format(unit=view.unit),
        series,
        view,
        may_be_log=spec.may_be_log,
        from_zero=spec.from_zero,
    )


def _step_charts(focus: Run | None, view: View) -> tuple[Chart, Chart]:
    """One run's steps k as lines and as a heat map."""
    name, table = (focus.name, focus.bound(view)) if focus else ("no run", None)
    note, unit, series = "", f"log N - L ({view.unit})", list[Series]()
    steps, bound, labels = np.zeros(0), np.zeros((0, 1)), ["k = 1"]
    if focus and table:
        bound, error = (view.factor(each) * table.by_step[each] for each in ("mi_bound_nats", "standard_error_nats"))
        steps, labels = table.means["step"], table.key.step_words
        for k, (label, colour) in enumerate(zip(labels, step_colours(len(labels)), strict=True)):
            series.append(Series(label, steps, bound[:, k], colour, error=error[:, k]))
        series += _reference_lines([table], *_CEILING, view)
        note = _how_to_read([(focus, table)])
    title = f"log N - L by step k and training step: {name}"
    caption = f"{note} Colours run from zero to the highest reading; of many records, means of neighbours are drawn."
    return (
        line_chart("steps", f"log N - L of every step k: {name}", f"{note} Dashed: the ceiling.", unit, series, view),
        heat_map("heat", title, caption, steps, bound, labels, unit, view),
    )


def _reference_lines(tables: Sequence[Table], field: str, words: str, view: View) -> list[Series]:
    """Ceilings or chances: one grey line for all that end at the same value, as long as the longest of them."""
    by_value: dict[str, Series] = {}
    for table in tables:
        steps, values = table.means["step"], view.factor(field) * table.means[field]
        known = values[np.isfinite(values)]
        if not len(known):  # not recorded
            continue
        name = words.format(f"{known[-1]:.3g}")
        if name not in by_value or by_value[name].steps[-1] < steps[-1]:
            by_value[name] = Series(name, steps, values, GREY, "dash", is_reference=True)
    return list(by_value.values())


def _how_to_read(curves: Sequence[tuple[Run, Table]]) -> str:
    """What the numbers are, for each strategy and split that is drawn, and of which runs where there are several."""
    found: dict[tuple[str, ...], list[tuple[str, Table]]] = {}
    for run, table in curves:
        found.setdefault(table.key.names, []).append((run.name, table))
    sentences = []
    for (split, strategy), same in found.items():
        more = f" and {len(same) - MAX_NAMES} more" if len(same) > MAX_NAMES else ""
        whose = f" ({', '.join(name for name, _ in same[:MAX_NAMES])}{more})" if len(found) > 1 else ""
        text = same[-1][1].last.get("reading") or "the record does not say what it reads"
        sentences.append(f"Split {split}, negatives {strategy}{whose}: {text}.")
    return " ".join(sentences)
