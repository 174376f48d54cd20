"""The figure of label efficiency: accuracy over the number of labels, on a logarithmic axis."""

from collections.abc import Mapping
from typing import Any

from cpc.data.figure_text import figure_text


def plot_label_efficiency(curve: Mapping[str, Any], title: str) -> Any:
    """Return a `matplotlib.figure.Figure` with a line for each representation and network.

    The legend is sorted by the accuracy with all labels, the best first.

    Args:
        curve: `label_efficiency` of a task in `probe.json`.
        title: title of the figure.
    """
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
