"""`probe.json`, the results of `cpc probe` and `cpc abx` for one model."""

import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cpc import __version__
from cpc.bounds.bound import record_table
from cpc.data.figure_text import figure_text
from cpc.data.store.fingerprints import describe_copies
from cpc.data.store.untrusted import read_json

SCHEMA = 3
REPORT_NAME = "probe.json"


@contextmanager
def add_seconds(seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Add the duration of the block to the seconds of a stage."""
    start = time.monotonic()
    yield
    seconds[stage] = round(seconds.get(stage, 0.0) + time.monotonic() - start, 2)


def heading(model_folder: str | Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first entries of a report: its schema, the versions, and the model with its config.json."""
    return {
        "schema": SCHEMA,
        "model": {"folder": str(model_folder), "sha256": config["sha256"], "step": config["provenance"].get("step")},
        "versions": {
            "cpc": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }


def read_report(path: str | Path, sha256: str) -> dict[str, Any]:
    """Read a report; it is empty if the file does not exist or belongs to weights with another hash."""
    path = Path(path)
    if not path.exists():
        return {}
    try:
        report = read_json(path)
    except ValueError as error:
        raise ValueError(f"{error}; the file is not a report: delete it, or name another file with `out`") from error
    is_report = isinstance(report, dict) and isinstance(report.get("model"), dict)
    return report if is_report and report["model"].get("sha256") == sha256 else {}


def format_report(report: Mapping[str, Any]) -> str:
    """Return the report as a readable table."""
    lines: list[str] = []
    for name, task in report["tasks"].items():
        protocol, results, curve = task["protocol"], task["results"], task["label_efficiency"]
        units = f"{protocol['unit']}s"
        pool = {None: "", "frames": ", every frame"}.get(
            protocol["pool"], f", {protocol['pool']} over the {protocol['unit']}"
        )
        parts = f"split {protocol['train_split']} ({protocol['num_train']} {units}) -> {protocol['test_split']} "
        parts += f"({protocol['num_test']})"
        if protocol["folds"] is not None:
            parts = f"{protocol['num_folds']} folds over {protocol['folds']} ({protocol['num_test']} {units})"
        lines.append(f"{name}: {len(protocol['classes'])} classes, {parts}{pool}")
        lines += results_table(results)
        for result in list(results.values())[:1]:
            lines.append(
                f"  H(Y) = {result['label_entropy_nats']:.3f} nats; {result['num_test']} test examples; "
                f"{result['num_unseen']} of them have a label that no training example has, and count as errors; "
                f"intervals over {result['num_clusters']} {protocol['clusters']}s"
            )
        if copies := task.get("copies_of_training"):
            lines.append(f"  {describe_copies(copies)} of the test data are copies of training data")
        lines += [_pretrained_on(task.get("pretrained_on")), ""]
        if curve is not None:
            lines += ["accuracy in percent by number of labels", "  " + f"{'':14}" + _row(curve["num_labels"], "d")]
            lines += [f"  {name:14}" + _row(values, ".1f") for name, values in curve["accuracy_percent"].items()]
            lines.append("")
    for name, family in report["families"].items():
        lines.append(f"{name}: mean F1 over {', '.join(family['members'])}")
        lines += [f"  {result:14} {f1:7.1f} %" for result, f1 in family["f1_percent"].items()] + [""]
    return "\n".join([*lines, *record_table(report["bound"])])


def _pretrained_on(record: Mapping[str, Any] | None) -> str:
    """Return the line that says whether pretraining has seen the test data."""
    if record is None:
        return "  not recorded: whether the model was pretrained on test data"
    return f"  pretraining, without labels, has used {describe_copies(record)} of the test data"


def results_table(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return records of results as the lines of a readable table."""
    lines = [f"  {'':14} {'accuracy':>9}  {'95 % interval':>15}  {'F1':>7}  {'macro-F1':>8}  {'H(Y) - CE, nats':>15}"]
    for name, result in results.items():
        interval, num_steps = result["accuracy_interval_percent"], result["num_network_steps"]
        between = "" if interval is None else f"{interval[0]:.1f} to {interval[1]:.1f}"
        accuracy, information = result["accuracy_percent"], result["label_information_nats"]
        after = "" if num_steps is None else f"  after {num_steps} training steps"
        f1, macro_f1 = result["f1_percent"], result["macro_f1_percent"]
        lines.append(
            f"  {name:14} {accuracy:7.1f} %  {between:>15}  {f1:5.1f} %  {macro_f1:6.1f} %  {information:15.3f}{after}"
        )
    return lines


def _row(values: Sequence[float | int], form: str) -> str:
    return "".join(f"{value:>8{form}}" for value in values)


def plot_label_efficiency(curve: Mapping[str, Any], title: str) -> Any:
    """Return a matplotlib figure of accuracy over the number of labels, on a logarithmic axis."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.8, 5.2), layout="constrained")
    axes = figure.subplots()
    accuracy = curve["accuracy_percent"]
    colours = {name: f"C{number}" for number, name in enumerate(accuracy)}
    for name in sorted(accuracy, key=lambda name: -accuracy[name][-1]):
        axes.plot(curve["num_labels"], accuracy[name], marker="o", color=colours[name], label=figure_text(name))
    axes.set_xscale("log")
    ticks = [f"{100 * share:g} %\n{num}" for share, num in zip(curve["shares"], curve["num_labels"], strict=True)]
    axes.set_xticks(curve["num_labels"], ticks)
    axes.minorticks_off()
    axes.set(title=figure_text(title), xlabel="share and number of training labels")
    axes.set_ylabel("accuracy on the test split, %")
    axes.grid(axis="y")
    figure.legend(loc="outside right upper")
    return figure
