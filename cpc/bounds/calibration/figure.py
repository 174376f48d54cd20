"""The figure calibration.png: mean estimates against true informations, one panel per task, dimension, N and critic."""

import math
from collections.abc import Sequence
from typing import Any


def estimates_figure(rows: Sequence[dict[str, Any]]) -> Any:
    """Return a matplotlib figure of the rows of calibration.json; a whisker is one standard deviation of an estimate.

    The dotted line is the truth, the dashed line the ceiling log N of InfoNCE.
    """
    from matplotlib.figure import Figure

    settings = list(dict.fromkeys((row["task"], row["dim"], row["num_candidates"], row["critic"]) for row in rows))
    num_columns = math.ceil(math.sqrt(len(settings)))
    num_lines = math.ceil(len(settings) / num_columns)
    figure = Figure(figsize=(5.0 * num_columns, 4.0 * num_lines), layout="constrained")
    for index, setting in enumerate(settings, start=1):
        axes = figure.add_subplot(num_lines, num_columns, index)
        own = [row for row in rows if (row["task"], row["dim"], row["num_candidates"], row["critic"]) == setting]
        for name in dict.fromkeys(row["estimator"] for row in own):
            points = [row for row in own if row["estimator"] == name and row["mean_nats"] is not None]
            values = ([row[key] for row in points] for key in ("true_nats", "mean_nats", "standard_deviation_nats"))
            x, y, deviations = values
            axes.errorbar(x, y, deviations, label=name, marker="o", markersize=3, linewidth=1)
        truths = sorted({row["true_nats"] for row in own})
        axes.plot(truths, truths, color="grey", linestyle=":", label="truth")
        axes.axhline(math.log(setting[2]), color="grey", linestyle="--", label="log N")
        task, dim, num_candidates, critic = setting
        axes.set(title=f"{task}, D = {dim}, N = {num_candidates}, {critic} critic", ylim=(-0.5, 1.5 * truths[-1]))
        axes.set(xlabel="true information (nats)", ylabel="estimate (nats)")
    figure.axes[0].legend(fontsize="small")
    return figure
