"""The charts of the page: which records each of them draws.

n records, K steps.
"""

import functools
import itertools
from collections.abc import Sequence

import numpy as np

from cpc.monitor.figure import GREY, RUN_COLOURS, Chart, Series, heat_map, line_chart, step_colours
from cpc.monitor.kinds import BOUND, HEALTH, PROBE
from cpc.monitor.profile import profile_chart
from cpc.monitor.run import Run
from cpc.monitor.table import Table
from cpc.monitor.view import AS_TRAINED, View

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


def bound_table(run: Run, view: View) -> Table | None:
    """The run's records of the split and strategy asked for; None if it has none.

    `as trained` is the strategy that came first: each evaluation begins with that of training. Should the steps have
    changed on the way, the table that was written to last.
    """
    tables = [t for t in run.tables(BOUND) if (t.key.names[0] == "train") == (view.split == "training")]
    strategy = view.strategy
    if strategy == AS_TRAINED and tables:
        strategy = tables[0].key.names[1]
    return max(
        (table for table in tables if table.key.names[1] == strategy),
        key=lambda table: table.last_mean("step"),
        default=None,
    )


def _chosen(runs: Sequence[Run], view: View) -> list[tuple[Run, str, Table]]:
    """Runs that have what is asked for, with their colours."""
    found = []
    for run, colour in zip(runs, _colours(view), strict=True):
        table = bound_table(run, view)
        if table is not None:
            found.append((run, colour, table))
    return found


def _colours(view: View) -> list[str]:
    return [RUN_COLOURS[place % len(RUN_COLOURS)] for place in view.colours]


def _bound_chart(runs: Sequence[Run], view: View) -> Chart:
    chosen, series = _chosen(runs, view), []
    for run, colour, table in chosen:
        error = table.mean("standard_error_nats") * view.per_nat
        bound = table.mean("mi_bound_nats") * view.per_nat
        series.append(Series(run.name, table.mean("step"), bound, colour, error=error))
    ceiling = _references([table for *_, table in chosen], "mi_ceiling_nats", "ceiling log N = {}", view.per_nat)
    return line_chart(
        "bound",
        "log N - L, mean over the steps k",
        f"{_readings(chosen)} Dashed: the ceiling log N, which no critic exceeds. Bands (of few curves): one "
        "standard error, as if the errors of all k were one.",
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
            note = _readings([(focus, "", table)])
        except FileNotFoundError:
            note = "The folder of this run was deleted: only means over k are still known."
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
        Series(run.name, table.mean("step"), table.mean("loss_nats") * view.per_nat, colour)
        for run, colour, table in _chosen(runs, view)
    ]
    caption = "InfoNCE loss L, mean over the steps k. Losses of different N are not comparable; log N - L is, a little."
    return line_chart("loss", "Loss", caption, f"L ({view.unit})", series, view, may_be_log=True)


def _accuracy_chart(runs: Sequence[Run], view: View) -> Chart:
    chosen = _chosen(runs, view)
    series = [Series(run.name, t.mean("step"), 100 * t.mean("accuracy"), colour) for run, colour, t in chosen]
    chance = _references([table for *_, table in chosen], "num_candidates", "chance 1/N = {} %", invert=True)
    caption = (
        "Share of rows in which no negative scores higher than the positive, ties shared; mean over the steps k. "
        "Dashed: chance, 1/N, where a collapsed encoder lies."
    )
    return line_chart("accuracy", "Accuracy", caption, "accuracy (%)", series + chance, view, from_zero=True)


def _probe_charts(runs: Sequence[Run], view: View) -> tuple[Chart, Chart]:
    accuracies: list[Series] = []
    informations: list[Series] = []
    tables = []
    for run, colour in zip(runs, _colours(view), strict=True):
        for table, dash in zip(run.tables(PROBE), itertools.cycle(_DASHES), strict=False):
            task, features = table.key.names
            name, steps = f"{run.name}: {task} from {features}", table.mean("step")
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
    def of(*fields: tuple[str, str, str]) -> list[Series]:
        """Of (field, words, dash)."""
        return [
            Series(f"{run.name}{words and ': ' + words}", table.mean("step"), table.mean(field), colour, dash)
            for run, colour in zip(runs, _colours(view), strict=True)
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
        name = words.format(f"{values[-1]:.3g}")
        former = by_value.get(name)
        if former is None or former.steps[-1] < table.last_mean("step"):
            by_value[name] = Series(name, table.mean("step"), values, GREY, "dash", is_reference=True)
    return list(by_value.values())


def _readings(chosen: Sequence[tuple[Run, str, Table]]) -> str:
    """What the numbers are, for each strategy and split that is drawn."""
    found = {}
    for *_, table in chosen:
        split, strategy = table.key.names
        found[split, strategy] = table.last.get("reading") or "of a record that does not say what it reads"
    return " ".join(f"Split {split}, negatives {strategy}: {text}." for (split, strategy), text in found.items())
