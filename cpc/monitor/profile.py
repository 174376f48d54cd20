"""The chart of the last bounds by step k, with their ceilings and with the information of equivalent Gaussians."""

from typing import Any

from cpc.monitor.figure import Chart, axis, format_number, layout, scatter_trace
from cpc.monitor.run import Run
from cpc.monitor.table import Table
from cpc.monitor.view import RUN_COLOURS, View
from cpc.pages.palette import GREY
from cpc.pages.report import Table as ChartTable

CAPTION = (
    "The last record of each split and strategy: points with standard errors; a grey bar is the ceiling log N. For "
    "bounds, a hollow diamond is the information of Gaussians for which an exact critic with as many candidates would "
    "reach the point. If the diamond is far above the point, use more candidates; if it is missing, the point is too "
    "near the ceiling for an estimate."
)
_BAR = {"symbol": "line-ew", "size": 18, "line": {"width": 2, "color": GREY}}


def profile_chart(run: Run | None, view: View) -> Chart:
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
    table = ChartTable(["step k", *columns], [[step, *(c.get(step, "") for c in columns.values())] for step in steps])
    alt = f"{title}. " + "; ".join(f"{name}: {', '.join(cells.values())}" for name, cells in columns.items())
    return Chart(title, CAPTION, alt, traces, layout(view, len(traces)) | axes, table, "profile")


def _last_values(table: Table, field: str, view: View) -> list[float | None]:
    values = table.last.get(field) or [None] * len(table.key.steps)
    return [None if value is None else view.factor(field) * value for value in values]
