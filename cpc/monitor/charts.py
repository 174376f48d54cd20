"""The charts of the page: which records each of them draws.

n records, K steps.
"""

import functools
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cpc.monitor.figure import GREY, RUN_COLOURS, Chart, Series, heat_map, line_chart, step_colours
from cpc.monitor.kinds import HEALTH, PROBE
from cpc.monitor.newest import bound_table
from cpc.monitor.profile import profile_chart
from cpc.monitor.run import Run
from cpc.monitor.table import Table
from cpc.monitor.view import View

NAMES = (
    "bound",
    "steps",
    "heat",
    "profile",
    "loss",
    "accuracy",
    "probe",
    "information",
    "rank",
    "variance",
    "gradient",
    "speed",
    "rate",
)
MAX_NAMES = 8  # of runs, in a caption
_DASHES = ("solid", "dash", "dashdot", "longdash")


def charts(runs: Sequence[Run], view: View) -> list[Chart]:
    """Every chart of `NAMES`, in that order.

    Args:
        runs: those shown, as `view.runs` names them.
        view: settings.
    """
    focus = next((run for run in runs if run.name == view.focus), None)
    return [
        _bound_chart(runs, view),
        *_step_charts(focus, view),
        profile_chart(focus, view),
        _loss_chart(runs, view),
        _accuracy_chart(runs, view),
        *_probe_charts(runs, view),
        *_health_charts(runs, view),
    ]


class _Chosen(NamedTuple):
    """A run that has what is asked for.

    Attributes:
        run: any.
        name: of its curve; with the strategy where not all have the same, for then one curve may be a bound and
            another none.
        colour: of its curve.
        table: the records asked for.
    """

    run: Run
    name: str
    colour: str
    table: Table


def _chosen(runs: Sequence[Run], view: View) -> list[_Chosen]:
    tables = [(run, table) for run in runs if (table := bound_table(run, view)) is not None]
    is_mixed = len({table.key.names for _, table in tables}) > 1
    colours = _colours(view)
    return [
        _Chosen(run, f"{run.name} ({table.key.names[1]})" if is_mixed else run.name, colours[run.name], table)
        for run, table in tables
    ]


def _colours(view: View) -> dict[str, str]:
    return {name: RUN_COLOURS[place % len(RUN_COLOURS)] for name, place in zip(view.runs, view.colours, strict=True)}


def _bound_chart(runs: Sequence[Run], view: View) -> Chart:
    chosen, series = _chosen(runs, view), []
    for _, name, colour, table in chosen:
        error = table.mean("standard_error_nats") * view.per_nat
        bound = table.mean("mi_bound_nats") * view.per_nat
        series.append(Series(name, table.mean("step"), bound, colour, error=error))
    ceiling = _references([each.table for each in chosen], "mi_ceiling_nats", "ceiling log N = {}", view.per_nat)
    return line_chart(
        "bound",
        "log N - L, mean over the steps k",
        f"{_readings(chosen)} Dashed: the ceiling log N, which no critic exceeds. Bands (of few curves, not smoothed): "
        "one standard error, as if the errors of all k were one.",
        f"log N - L ({view.unit})",
        series + ceiling,
        view,
    )


def _step_charts(focus: Run | None, view: View) -> tuple[Chart, Chart]:
    """One run's steps k as lines and as a heat map."""
    table = None if focus is None else bound_table(focus, view)
    name = "a run" if focus is None else focus.name
    title, note = f"log N - L of every step k: {name}", "Choose the run above."
    series: list[Series] = []
    steps, bound, labels = np.zeros(0), np.zeros((0, 1)), ["k = 1"]
    if table is not None and focus is not None:
        try:
            bound = table.column("mi_bound_nats") * view.per_nat
            error = table.column("standard_error_nats") * view.per_nat
            steps, labels = table.mean("step"), table.key.step_words
            for k, (label, colour) in enumerate(zip(labels, step_colours(len(labels)), strict=True)):
                series.append(Series(label, steps, bound[:, k], colour, error=error[:, k]))
            series += _references([table], "mi_ceiling_nats", "ceiling log N = {}", view.per_nat)
            note = _readings([_Chosen(focus, focus.name, GREY, table)])
        except OSError:
            note = "The columns of this run are gone: only means over k are still known."
    return (
        line_chart("steps", title, f"{note} Dashed: the ceiling.", f"log N - L ({view.unit})", series, view),
        heat_map(
            "heat",
            f"log N - L by step k and training step: {name}",
            f"{note} Colours run from zero to the highest reading; of many records, means of neighbours are drawn.",
            steps,
            bound,
            labels,
            f"log N - L ({view.unit})",
            view,
        ),
    )


def _loss_chart(runs: Sequence[Run], view: View) -> Chart:
    series = [
        Series(name, table.mean("step"), table.mean("loss_nats") * view.per_nat, colour)
        for _, name, colour, table in _chosen(runs, view)
    ]
    caption = (
        "InfoNCE loss L, mean over the steps k. It grows with N, up to log N of a model that knows nothing: losses of "
        "different N are not comparable."
    )
    return line_chart("loss", "Loss", caption, f"L ({view.unit})", series, view, may_be_log=True)


def _accuracy_chart(runs: Sequence[Run], view: View) -> Chart:
    chosen = _chosen(runs, view)
    series = [Series(name, t.mean("step"), 100 * t.mean("accuracy"), colour) for _, name, colour, t in chosen]
    chance = _references([each.table for each in chosen], "num_candidates", "chance 1/N = {} %", invert=True)
    caption = (
        "Share of rows in which no negative scores higher than the positive, ties shared; mean over the steps k. "
        "Dashed: chance, 1/N, where a collapsed encoder lies."
    )
    return line_chart("accuracy", "Accuracy", caption, "accuracy (%)", series + chance, view, from_zero=True)


def _probe_charts(runs: Sequence[Run], view: View) -> tuple[Chart, Chart]:
    accuracies: list[Series] = []
    informations: list[Series] = []
    tables, colours = [], _colours(view)
    for run in runs:
        for table, dash in zip(run.tables(PROBE), itertools.cycle(_DASHES), strict=False):
            task, features = table.key.names
            name, steps = f"{run.name}: {task} from {features}", table.mean("step")
            colour = colours[run.name]
            accuracies.append(Series(name, steps, 100 * table.mean("accuracy"), colour, dash))
            information = table.mean("label_information_nats") * view.per_nat
            informations.append(Series(name, steps, information, colour, dash))
            tables.append(table)
    with_majority = [table for table in tables if np.isfinite(table.mean("majority_accuracy")).any()]
    accuracies += _references(with_majority, "majority_accuracy", "majority = {} %", 100.0)
    informations += _references(tables, "label_entropy_nats", "H(Y) = {}", view.per_nat)
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
    colours = _colours(view)

    def of(*fields: tuple[str, str, str]) -> list[Series]:
        """Of (field, words, dash)."""
        return [
            Series(
                f"{run.name}{words and ': ' + words}", table.mean("step"), table.mean(field), colours[run.name], dash
            )
            for run in runs
            for table in run.tables(HEALTH)
            for field, words, dash in fields
        ]

    rank = of(("z_effective_rank", "z", "solid"), ("c_effective_rank", "c", "dash"))
    variance = of(("z_variance", "z", "solid"), ("c_variance", "c", "dash"))
    gradient = of(("gradient_norm", "mean", "solid"), ("gradient_norm_max", "largest", "dot"))
    chart = functools.partial(line_chart, view=view, may_be_log=True, from_zero=True)
    return [
        chart(
            "rank",
            "Effective rank of z and c",
            "How many dimensions latents and contexts fill: exp of the entropy of their normalised singular values, "
            "on one batch. Near 1 the encoder has collapsed.",
            "effective rank",
            rank,
        ),
        chart(
            "variance",
            "Variance of z and c",
            "Over one batch, mean over the dimensions.",
            "variance",
            variance,
        ),
        chart(
            "gradient",
            "Norm of the gradient",
            "Before clipping: mean and largest since the record before.",
            "gradient norm",
            gradient,
        ),
        chart(
            "speed",
            "Throughput",
            "Windows or images trained on per second, on all ranks; evaluation and saving left out.",
            "windows per second",
            of(("windows_per_second", "", "solid")),
        ),
        chart(
            "rate",
            "Learning rate",
            "Of the optimiser's last step.",
            "learning rate",
            of(("learning_rate", "", "solid")),
        ),
    ]


def _references(
    tables: Sequence[Table], field: str, words: str, factor: float = 1.0, *, invert: bool = False
) -> list[Series]:
    """Ceilings or chances: one grey line for all that end at the same value, as long as the longest of them."""
    by_value: dict[str, Series] = {}
    for table in tables:
        values = 100 / table.mean(field) if invert else factor * table.mean(field)
        known = values[np.isfinite(values)]
        if not len(known):  # of a run that was deleted before anybody asked
            continue
        name = words.format(f"{known[-1]:.3g}")
        former = by_value.get(name)
        if former is None or former.steps[-1] < table.last_mean("step"):
            by_value[name] = Series(name, table.mean("step"), values, GREY, "dash", is_reference=True)
    return list(by_value.values())


def _readings(chosen: Sequence[_Chosen]) -> str:
    """What the numbers are, for each strategy and split that is drawn, and of which runs where there are several."""
    runs: dict[tuple[str, ...], list[str]] = {}
    found: dict[tuple[str, ...], str] = {}
    for each in chosen:
        names = each.table.key.names
        runs.setdefault(names, []).append(each.run.name)
        found[names] = each.table.last.get("reading") or "of a record that does not say what it reads"
    sentences = []
    for (split, strategy), text in found.items():
        of = runs[split, strategy]
        more = f" and {len(of) - MAX_NAMES} more" if len(of) > MAX_NAMES else ""
        whose = f" ({', '.join(of[:MAX_NAMES])}{more})" if len(found) > 1 else ""
        sentences.append(f"Split {split}, negatives {strategy}{whose}: {text}.")
    return " ".join(sentences)
