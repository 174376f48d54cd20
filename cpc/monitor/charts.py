"""The charts of the page and the records that they show."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from cpc.monitor.figure import Chart, Series, axis, format_number, heat_map, layout, line_chart, scatter_trace
from cpc.monitor.record_types import BOUND, HEALTH, PROBE, RETURNS, RecordType
from cpc.monitor.run import Run
from cpc.monitor.table import Table
from cpc.monitor.view import RUN_COLOURS, View
from cpc.pages.palette import GREY, step_colours
from cpc.pages.report import Table as Values

BY_RUN = ("steps", "heat", "profile")  # charts of a single run
MAX_NAMES = 8  # names of runs in a caption
_DASHES = ("solid", "dash", "dashdot", "longdash")
_CEILING = ("mi_ceiling_nats", "ceiling log N = {}")
PROFILE_CAPTION = (
    "The last record of each split and strategy: points with standard errors; a grey bar is the ceiling log N. For "
    "bounds, a hollow diamond is the information of Gaussians for which an exact critic with as many candidates would "
    "reach the point. If the diamond is far above the point, use more candidates; if it is missing, the point is too "
    "near the ceiling for an estimate."
)
_BAR = {"symbol": "line-ew", "size": 18, "line": {"width": 2, "color": GREY}}


class ChartSpec(NamedTuple):
    """A chart of all runs: numbers of one record type over training."""

    record_type: RecordType
    title: str
    axis: str  # `{unit}` is the unit of information
    caption: str  # how to read the chart; `{how_to_read}` stands for the meaning of the curves
    fields: dict[str, str]  # fields to plot, each with a text that follows the run's name
    reference: tuple[str, str] | None = None  # a field that is plotted in grey, and its label; `{}` is its last value
    error: str = ""  # a field that is plotted as a band
    may_be_log: bool = False  # True if all values are positive
    from_zero: bool = True  # True if a linear axis begins at zero


def _health(title: str, caption: str, **fields: str) -> ChartSpec:
    return ChartSpec(HEALTH, title, title.lower(), caption, fields, may_be_log=True)


CHART_SPECS = {
    "bound": ChartSpec(
        BOUND,
        "log N - L, mean over the steps k",
        "log N - L ({unit})",
        "{how_to_read} Dashed: the ceiling log N, which no critic exceeds. Bands (with few curves and without "
        "smoothing): one standard error, computed as if the errors of all k were equal.",
        {"mi_bound_nats": ""},
        _CEILING,
        error="standard_error_nats",
    ),
    "loss": ChartSpec(
        BOUND,
        "Loss",
        "L ({unit})",
        "InfoNCE loss L, mean over the steps k. It grows with N, so losses of different N are not comparable.",
        {"loss_nats": ""},
        may_be_log=True,
        from_zero=False,
    ),
    "accuracy": ChartSpec(
        BOUND,
        "Accuracy",
        "accuracy (%)",
        "Share of rows in which no negative scores higher than the positive; ties count in part. Mean over the steps "
        "k. Dashed: chance, 1/N, the accuracy of a collapsed encoder.",
        {"accuracy": ""},
        ("chance_accuracy", "chance 1/N = {} %"),
    ),
    "probe": ChartSpec(
        PROBE,
        "Accuracy of the online probe",
        "accuracy (%)",
        "A linear probe that is trained during pretraining, tested on held-out batches. Dashed: always predicting the "
        "most frequent class.",
        {"accuracy": ""},
        ("majority_accuracy", "majority = {} %"),
    ),
    "information": ChartSpec(
        PROBE,
        "Label information H(Y) - CE",
        "H(Y) - CE ({unit})",
        "A lower bound on the information between features and labels, from the probe at the same checkpoints as the "
        "held-out log N - L. Dashed: H(Y), the largest possible value.",
        {"label_information_nats": ""},
        ("label_entropy_nats", "H(Y) = {}"),
    ),
    "rank": _health(
        "Effective rank of z and c",
        "Number of dimensions that latents and contexts fill: exp of the entropy of their normalised singular values, "
        "on one batch. Near 1 the encoder has collapsed.",
        z_effective_rank=": z",
        c_effective_rank=": c",
    ),
    "variance": _health(
        "Variance of z and c", "Over one batch, mean over the dimensions.", z_variance=": z", c_variance=": c"
    ),
    "gradient": _health(
        "Gradient norm",
        "Before clipping: mean and largest value since the previous record.",
        gradient_norm=": mean",
        gradient_norm_max=": largest",
    ),
    "speed": _health("Examples per second", "On all ranks, without evaluation and saving.", windows_per_second=""),
    "rate": _health("Learning rate", "At the optimiser's last step.", learning_rate=""),
    "return": ChartSpec(
        RETURNS,
        "Return",
        "mean return",
        "Mean sum of rewards of an agent's episodes that ended since the previous record, by steps of all its "
        "environments together.",
        {"mean_return": ""},
        from_zero=False,
    ),
}
NAMES = ("bound", *BY_RUN, *list(CHART_SPECS)[1:])


@np.errstate(over="ignore")  # a value has a gap where it overflows float32
def charts(runs: Sequence[Run], view: View, names: Sequence[str] = NAMES) -> list[Chart]:
    """Return the charts with these names, in the order of `NAMES`."""
    focus = next((run for run in runs if run.name == view.focus), next(iter(runs), None))
    charts_by_name = {name: _chart(name, spec, runs, view) for name, spec in CHART_SPECS.items() if name in names}
    if set(names) & set(BY_RUN):
        charts_by_name |= {chart.name: chart for chart in (*_step_charts(focus, view), _profile_chart(focus, view))}
    return [charts_by_name[name] for name in NAMES if name in names]


def _chart(name: str, spec: ChartSpec, runs: Sequence[Run], view: View) -> Chart:
    record_type, series = spec.record_type, []
    tables = {run: [run.bound(view)] if record_type is BOUND else run.tables(record_type) for run in runs}
    curves = [(run, table) for run in runs for table in tables[run] if table]
    # With several strategies, only some curves may be bounds.
    has_suffix = record_type is PROBE or (record_type is BOUND and len({table.key.names for _, table in curves}) > 1)
    for run, run_curves in itertools.groupby(curves, key=lambda curve: curve[0]):
        dashes = itertools.cycle(_DASHES)
        for _, table in run_curves:
            label = run.name
            if has_suffix:
                label += f" ({table.key.names[1]})" if record_type is BOUND else f": {' from '.join(table.key.names)}"
            error = view.factor(spec.error) * table.means[spec.error] if spec.error else None
            for field, suffix in spec.fields.items():
                values = view.factor(field) * table.means[field]
                series.append(Series(label + suffix, table.means["step"], values, run.colour, next(dashes), error))
    if spec.reference:
        series += _reference_lines([table for _, table in curves], *spec.reference, view)
    caption = spec.caption.format(how_to_read=_how_to_read(curves) if record_type is BOUND else "")
    options = {"may_be_log": spec.may_be_log, "from_zero": spec.from_zero}
    return line_chart(name, spec.title, caption, spec.axis.format(unit=view.unit), series, view, **options)


def _step_charts(focus: Run | None, view: View) -> tuple[Chart, Chart]:
    """Plot the steps k of one run as lines and as a heat map."""
    name, table = (focus.name, focus.bound(view)) if focus else ("no run", None)
    note, series, steps, bound = "", list[Series](), np.zeros(0), np.zeros((0, 1))
    if focus and table:
        bound, error = (view.factor(field) * table.by_step[field] for field in ("mi_bound_nats", "standard_error_nats"))
        steps, labels = table.means["step"], table.key.step_labels
        for k, (label, colour) in enumerate(zip(labels, step_colours(len(labels)), strict=True)):
            series.append(Series(label, steps, bound[:, k], colour, error=error[:, k]))
        series += _reference_lines([table], *_CEILING, view)
        note = _how_to_read([(focus, table)])
    title, unit = f"log N - L of every step k: {name}", f"log N - L ({view.unit})"
    lines = line_chart("steps", title, f"{note} Dashed: the ceiling.", unit, series, view)
    title = f"log N - L by step k and training step: {name}"
    caption = f"{note} Colours run from zero to the highest value; many records are averaged with their neighbours."
    return lines, heat_map(title, caption, lines, steps, bound, view)


def _profile_chart(run: Run | None, view: View) -> Chart:
    """Plot all splits and strategies of one run side by side over the steps k."""
    traces: list[dict[str, Any]] = []
    columns: dict[str, dict[str, str]] = {}
    for index, records in enumerate(run.current_tables() if run else ()):
        curve, step_labels = " ".join(records.key.names), records.key.step_labels
        points = {"color": RUN_COLOURS[index % len(RUN_COLOURS)], "size": 8}
        errors = {"type": "data", "array": _last_values(records, "standard_error_nats", view), "thickness": 1.5}
        for label, field, style in (
            (f"{curve}: ceiling", "mi_ceiling_nats", {"marker": _BAR, "showlegend": False}),
            (f"{curve}: Gaussians", "information_for_gaussians_nats", {"marker": points | {"symbol": "diamond-open"}}),
            (curve, "mi_bound_nats", {"marker": points, "error_y": errors}),
        ):
            values = _last_values(records, field, view)
            if any(value is not None for value in values):
                marks = {"mode": "markers", "x": step_labels, "y": values}
                traces.append(scatter_trace(label, "%{x}") | marks | style)
                cells = ("n/a" if value is None else format_number(value) for value in values)
                columns[label] = dict(zip(step_labels, cells, strict=True))
    # The range is fixed because all other charts share one zoom of the training step, which must not change this axis.
    axes = {
        "xaxis": axis("step k", view) | {"type": "category", "fixedrange": True},
        "yaxis": axis(f"log N - L ({view.unit})", view) | {"fixedrange": True},
    }
    title = f"What N candidates can show: {'no run' if run is None else run.name}"
    steps = dict.fromkeys(step for cells in columns.values() for step in cells)
    table = Values(["step k", *columns], [[step, *(c.get(step, "") for c in columns.values())] for step in steps])
    alt = f"{title}. " + "; ".join(f"{name}: {', '.join(cells.values())}" for name, cells in columns.items())
    return Chart(title, PROFILE_CAPTION, alt, traces, layout(view, len(traces)) | axes, table, "profile")


def _last_values(table: Table, field: str, view: View) -> list[float | None]:
    values = table.last.get(field) or [None] * len(table.key.steps)
    return [None if value is None else view.factor(field) * value for value in values]


def _reference_lines(tables: Sequence[Table], field: str, label: str, view: View) -> list[Series]:
    """Return grey lines of ceilings or chances. Of lines that end at the same value, only the longest is returned."""
    lines_by_value: dict[str, Series] = {}
    for table in tables:
        steps, values = table.means["step"], view.factor(field) * table.means[field]
        finite = values[np.isfinite(values)]
        if not len(finite):  # the field was not recorded
            continue
        name = label.format(f"{finite[-1]:.3g}")
        if name not in lines_by_value or lines_by_value[name].steps[-1] < steps[-1]:
            lines_by_value[name] = Series(name, steps, values, GREY, "dash", is_reference=True)
    return list(lines_by_value.values())


def _how_to_read(curves: Sequence[tuple[Run, Table]]) -> str:
    """Return the meaning of log N - L for each split and strategy, with names of runs if there are several."""
    groups: dict[tuple[str, ...], list[tuple[str, Table]]] = {}
    for run, table in curves:
        groups.setdefault(table.key.names, []).append((run.name, table))
    sentences = []
    for (split, strategy), group in groups.items():
        more = f" and {len(group) - MAX_NAMES} more" if len(group) > MAX_NAMES else ""
        names = f" ({', '.join(name for name, _ in group[:MAX_NAMES])}{more})" if len(groups) > 1 else ""
        text = group[-1][1].last.get("reading") or "the record does not say whether this is a bound"
        sentences.append(f"Split {split}, negatives {strategy}{names}: {text}.")
    return " ".join(sentences)
