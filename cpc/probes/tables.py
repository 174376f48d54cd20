"""Tables and the figure of `probe.json`."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cpc.data.figure_text import figure_text
from cpc.data.store.fingerprints import describe_copies
from cpc.evaluation.tables import NOT_RECORDED, bound_table
from cpc.pages.report import Table, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HEADER = ["", "accuracy, %", "95 % interval", "F1, %", "macro-F1, %", "H(Y) - CE, nats"]


def probe_tables(report: Mapping[str, Any]) -> list[Table]:
    """Return the tables of a report: two at most for each task, one for each family of tasks, and the bound."""
    tables = [table for name, task in report["tasks"].items() for table in _of_task(name, task)]
    for name, family in report["families"].items():
        rows = [[result, number(f1, 1)] for result, f1 in family["f1_percent"].items()]
        tables.append(Table(["", "F1, %"], rows, f"{name}: mean F1 over {', '.join(family['members'])}"))
    return [*tables, bound_table(report["bound"][0]) if report["bound"] else NOT_RECORDED]


def _of_task(name: str, task: Mapping[str, Any]) -> Iterator[Table]:
    protocol, results, curve = task["protocol"], task["results"], task["label_efficiency"]
    unit, first = protocol["unit"], next(iter(results.values()))
    parts = (
        f"split {protocol['train_split']} ({protocol['num_train']} {unit}s) -> {protocol['test_split']} "
        f"({protocol['num_test']})"
    )
    if protocol["folds"] is not None:
        parts = f"{protocol['num_folds']} folds over {protocol['folds']} ({protocol['num_test']} {unit}s)"
    pool = {None: "", "frames": ", every frame"}.get(protocol["pool"], f", {protocol['pool']} over the {unit}")
    notes = [
        f"H(Y) = {first['label_entropy_nats']:.3f} nats; {first['num_test']} test examples; {first['num_unseen']} of "
        "them have a label that no training example has, and count as errors; intervals over "
        f"{first['num_clusters']} {protocol['clusters']}s"
    ]
    for result, each in results.items():
        if each["num_network_steps"] is not None:
            notes.append(f"{result}: after {each['num_network_steps']} training steps")
    if copies := task.get("copies_of_training"):
        notes.append(f"{describe_copies(copies)} of the test data are copies of training data")
    used = task.get("pretrained_on")
    notes.append(
        "not recorded: whether the model was pretrained on test data"
        if used is None
        else f"pretraining, without labels, has used {describe_copies(used)} of the test data"
    )
    rows = [result_row(result, each) for result, each in results.items()]
    yield Table(_HEADER, rows, f"{name}: {len(protocol['classes'])} classes, {parts}{pool}", notes)
    if curve is not None:
        by_result = curve["accuracy_percent"].items()
        rows = [[result, *(number(value, 1) for value in values)] for result, values in by_result]
        yield Table(["", *map(str, curve["num_labels"])], rows, "accuracy in percent by number of labels")


def result_row(name: str, result: Mapping[str, Any]) -> list[str]:
    """Return the record of a `ProbeResult` as a row of a table."""
    interval = result["accuracy_interval_percent"]
    between = "" if interval is None else f"{interval[0]:.1f} to {interval[1]:.1f}"
    percents = [number(result[key], 1) for key in ("accuracy_percent", "f1_percent", "macro_f1_percent")]
    return [name, percents[0], between, *percents[1:], number(result["label_information_nats"])]


def draw_probes(report: Mapping[str, Any], figure: "Figure") -> None:
    """Draw a panel for each task: the accuracy of every feature with its 95 % interval, or its label efficiency."""
    panels = figure.subplots(1, len(report["tasks"]), squeeze=False)[0]
    for axes, (name, task) in zip(panels, report["tasks"].items(), strict=True):
        if task["label_efficiency"] is not None:
            _draw_curve(task["label_efficiency"], axes)
            axes.legend()
        else:
            for place, result in enumerate(task["results"].values()):
                accuracy = result["accuracy_percent"]
                low, high = result["accuracy_interval_percent"] or (accuracy, accuracy)
                axes.barh(place, accuracy, xerr=[[accuracy - low], [high - accuracy]], color="C0")
            axes.set_yticks(range(len(task["results"])), map(figure_text, task["results"]))
            axes.invert_yaxis()
            axes.set_xlabel("accuracy, %")
        axes.set_title(figure_text(name))


def draw_label_efficiency(curve: Mapping[str, Any], title: str, figure: "Figure") -> None:
    """Draw accuracy over the number of labels, on a logarithmic axis; the best with all labels comes first."""
    figure.set_size_inches(8.8, 5.2)
    _draw_curve(curve, axes := figure.subplots())
    axes.set_title(figure_text(title))
    figure.legend(loc="outside right upper")


def _draw_curve(curve: Mapping[str, Any], axes: Any) -> None:
    accuracy = curve["accuracy_percent"]
    colours = {name: f"C{index}" for index, name in enumerate(accuracy)}
    for name in sorted(accuracy, key=lambda name: -accuracy[name][-1]):
        axes.plot(curve["num_labels"], accuracy[name], marker="o", color=colours[name], label=figure_text(name))
    axes.set_xscale("log")
    ticks = [f"{100 * share:g} %\n{num}" for share, num in zip(curve["shares"], curve["num_labels"], strict=True)]
    axes.set_xticks(curve["num_labels"], ticks)
    axes.minorticks_off()
    axes.set(xlabel="share and number of training labels", ylabel="accuracy on the test split, %")
    axes.grid(axis="y")
