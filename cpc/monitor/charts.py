"""The charts of the page: which records each of them draws.

n records, K steps.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from cpc.monitor.figure import GREY, Chart, Series, heat_map, line_chart, step_colours
from cpc.monitor.kinds import HEALTH, PROBE
from cpc.monitor.newest import bound_table
from cpc.monitor.profile import profile_chart
from cpc.monitor.run import Run
from cpc.monitor.table import Table
from cpc.monitor.view import View

BY_RUN = ("steps", "heat", "profile")
NAMES = ("bound", *BY_RUN, "loss", "accuracy", "probe", "information", "rank", "variance", "gradient", "speed", "rate")
MAX_NAMES = 8  # of runs, in a caption
_DASHES = ("solid", "dash", "dashdot", "longdash")
_OF_HEALTH = (  # name, title, caption, axis, and of each line field, words and dash
    (
        "rank",
        "Effective rank of z and c",
        "How many dimensions latents and contexts fill: exp of the entropy of their normalised singular values, on one "
        "batch. Near 1 the encoder has collapsed.",
        "effective rank",
        (("z_effective_rank", ": z", "solid"), ("c_effective_rank", ": c", "dash")),
    ),
    (
        "variance",
        "Variance of z and c",
        "Over one batch, mean over the dimensions.",
        "variance",
        (("z_variance", ": z", "solid"), ("c_variance", ": c", "dash")),
    ),
    (
        "gradient",
        "Norm of the gradient",
        "Before clipping: mean and largest since the record before.",
        "gradient norm",
        (("gradient_norm", ": mean", "solid"), ("gradient_norm_max", ": largest", "dot")),
    ),
    (
        "speed",
        "Throughput",
        "Examples trained on per second, on all ranks, without evaluation and saving.",
        "examples per second",
        (("windows_per_second", "", "solid"),),
    ),
    ("rate", "Learning rate", "Of the optimiser's last step.", "learning rate", (("learning_rate", "", "solid"),)),
)


def charts(runs: Sequence[Run], view: View) -> list[Chart]:
    """Every chart of `NAMES`, in that order."""
    focus = next((run for run in runs if run.name == view.focus), None)
    curves = _curves(runs, view)
    return [
        _bound_chart(curves, view),
        *_step_charts(focus, view),
        profile_chart(focus, view),
        _loss_chart(curves, view),
        _accuracy_chart(curves, view),
        *_probe_charts(runs, view),
        *_health_charts(runs, view),
    ]


class _Curve(NamedTuple):
    """A run's records of the split and strategy asked for."""

    run: Run
    name: str
    table: Table

    def series(self, field: str, factor: float = 1.0, dash: str = "solid") -> Series:
        """A field's mean over k."""
        values = factor * self.table.mean(field)
        return Series(self.name, self.table.mean("step"), values, self.run.colour, dash)


def _curves(runs: Sequence[Run], view: View) -> list[_Curve]:
    """Named with the strategy where not all have the same: then one curve may be a bound and another not."""
    tables = [(run, table) for run in runs if (table := bound_table(run, view)) is not None]
    is_mixed = len({table.key.names for _, table in tables}) > 1
    return [_Curve(run, f"{run.name} ({table.key.names[1]})" if is_mixed else run.name, table) for run, table in tables]


def _bound_chart(curves: Sequence[_Curve], view: View) -> Chart:
    series = [
        each.series("mi_bound_nats", view.per_nat)._replace(error=each.table.mean("standard_error_nats") * view.per_nat)
        for each in curves
    ]
    return line_chart(
        "bound",
        "log N - L, mean over the steps k",
        f"{_readings(curves)} Dashed: the ceiling log N, which no critic exceeds. Bands (of few curves, not smoothed): "
        "one standard error, as if the errors of all k were one.",
        f"log N - L ({view.unit})",
        series + _ceilings([each.table for each in curves], view),
        view,
    )


def _step_charts(focus: Run | None, view: View) -> tuple[Chart, Chart]:
    """One run's steps k as lines and as a heat map."""
    table = None if focus is None else bound_table(focus, view)
    name = "a run" if focus is None else focus.name
    title, note, unit = f"log N - L of every step k: {name}", "Choose the run above.", f"log N - L ({view.unit})"
    series: list[Series] = []
    steps, bound, labels = np.zeros(0), np.zeros((0, 1)), ["k = 1"]
    if table is not None and focus is not None:
        try:
            bound = table.column("mi_bound_nats") * view.per_nat
            error = table.column("standard_error_nats") * view.per_nat
            steps, labels = table.mean("step"), table.key.step_words
            for k, (label, colour) in enumerate(zip(labels, step_colours(len(labels)), strict=True)):
                series.append(Series(label, steps, bound[:, k], colour, error=error[:, k]))
            series += _ceilings([table], view)
            note = _readings([_Curve(focus, focus.name, table)])
        except OSError:
            note = "The columns of this run are gone: only means over k are still known."
    heat_title = f"log N - L by step k and training step: {name}"
    heat_note = f"{note} Colours run from zero to the highest reading; of many records, means of neighbours are drawn."
    return (
        line_chart("steps", title, f"{note} Dashed: the ceiling.", unit, series, view),
        heat_map("heat", heat_title, heat_note, steps, bound, labels, unit, view),
    )


def _loss_chart(curves: Sequence[_Curve], view: View) -> Chart:
    series = [each.series("loss_nats", view.per_nat) for each in curves]
    caption = (
        "InfoNCE loss L, mean over the steps k. It grows with N, up to log N of a model that knows nothing: losses of "
        "different N are not comparable."
    )
    return line_chart("loss", "Loss", caption, f"L ({view.unit})", series, view, may_be_log=True)


def _accuracy_chart(curves: Sequence[_Curve], view: View) -> Chart:
    series = [each.series("accuracy", 100.0) for each in curves]
    tables = [each.table for each in curves]
    chance = _references(tables, "chance 1/N = {} %", lambda table: 100 / table.mean("num_candidates"))
    caption = (
        "Share of rows in which no negative scores higher than the positive, ties shared; mean over the steps k. "
        "Dashed: chance, 1/N, which is what a collapsed encoder reaches."
    )
    return line_chart("accuracy", "Accuracy", caption, "accuracy (%)", series + chance, view, from_zero=True)


def _probe_charts(runs: Sequence[Run], view: View) -> tuple[Chart, Chart]:
    accuracies, informations, tables = [], [], []
    for run in runs:
        for table, dash in zip(run.tables(PROBE), itertools.cycle(_DASHES), strict=False):
            curve = _Curve(run, f"{run.name}: {' from '.join(table.key.names)}", table)
            accuracies.append(curve.series("accuracy", 100.0, dash))
            informations.append(curve.series("label_information_nats", view.per_nat, dash))
            tables.append(table)
    accuracies += _references(tables, "majority = {} %", lambda table: 100 * table.mean("majority_accuracy"))
    informations += _references(tables, "H(Y) = {}", lambda table: view.per_nat * table.mean("label_entropy_nats"))
    return (
        line_chart(
            "probe",
            "Accuracy of the online probe",
            "A linear probe that learns beside pretraining, on held-out batches. Dashed: always naming the most "
            "frequent class.",
            "accuracy (%)",
            accuracies,
            view,
            from_zero=True,
        ),
        line_chart(
            "information",
            "Label information H(Y) - CE",
            "A lower bound on what the features say about the labels, certified by the probe at the same checkpoints "
            "as the held-out log N - L. Dashed: H(Y), all there is to say.",
            f"H(Y) - CE ({view.unit})",
            informations,
            view,
            from_zero=True,
        ),
    )


def _health_charts(runs: Sequence[Run], view: View) -> list[Chart]:
    found = []
    for name, title, caption, y_title, fields in _OF_HEALTH:
        series = [
            _Curve(run, f"{run.name}{words}", table).series(field, dash=dash)
            for run in runs
            for table in run.tables(HEALTH)
            for field, words, dash in fields
        ]
        found.append(line_chart(name, title, caption, y_title, series, view, may_be_log=True, from_zero=True))
    return found


def _ceilings(tables: Sequence[Table], view: View) -> list[Series]:
    return _references(tables, "ceiling log N = {}", lambda table: view.per_nat * table.mean("mi_ceiling_nats"))


def _references(tables: Sequence[Table], words: str, of: Callable[[Table], np.ndarray]) -> list[Series]:
    """Ceilings or chances: one grey line for all that end at the same value, as long as the longest of them."""
    by_value: dict[str, Series] = {}
    for table in tables:
        values = of(table)
        known = values[np.isfinite(values)]
        if not len(known):  # not recorded, or of a run that was deleted before anybody asked
            continue
        name = words.format(f"{known[-1]:.3g}")
        former = by_value.get(name)
        if former is None or former.steps[-1] < table.last_mean("step"):
            by_value[name] = Series(name, table.mean("step"), values, GREY, "dash", is_reference=True)
    return list(by_value.values())


def _readings(curves: Sequence[_Curve]) -> str:
    """What the numbers are, for each strategy and split that is drawn, and of which runs where there are several."""
    found: dict[tuple[str, ...], list[_Curve]] = {}
    for each in curves:
        found.setdefault(each.table.key.names, []).append(each)
    sentences = []
    for (split, strategy), same in found.items():
        more = f" and {len(same) - MAX_NAMES} more" if len(same) > MAX_NAMES else ""
        whose = f" ({', '.join(each.run.name for each in same[:MAX_NAMES])}{more})" if len(found) > 1 else ""
        text = same[-1].table.last.get("reading") or "of a record that does not say what it reads"
        sentences.append(f"Split {split}, negatives {strategy}{whose}: {text}.")
    return " ".join(sentences)
