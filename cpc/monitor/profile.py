"""What N candidates can show: the last readings by step k, between the ceiling and what they would be of Gaussians."""

from typing import Any

from cpc.monitor.figure import GREY, Chart, axis, layout, named, number
from cpc.monitor.run import Run
from cpc.monitor.table import Table
from cpc.monitor.view import RUN_COLOURS, View

CAPTION = (
    "The last record of each split and strategy: points with their standard errors; a grey bar is the ceiling log N. "
    "A hollow diamond, drawn where the point is a bound, is the information of Gaussians of which an exact critic with "
    "as many candidates would read the point. Far above the point, more candidates would show more; missing, the "
    "reading is too near the ceiling to tell."
)
_BAR = {"symbol": "line-ew", "size": 18, "line": {"width": 2, "color": GREY}}


def profile_chart(run: Run | None, view: View) -> Chart:
    """The splits and strategies of the run in focus side by side over the steps k."""
    tables = [] if run is None else run.current_tables()
    drawn: list[dict[str, Any]] = []
    columns: dict[str, dict[str, str]] = {}
    for place, table in enumerate(tables):
        curve, words = " ".join(table.key.names), table.key.step_words
        points = {"color": RUN_COLOURS[place % len(RUN_COLOURS)], "size": 8}
        errors = {"type": "data", "array": _last(table, "standard_error_nats", view), "thickness": 1.5}
        for label, field, looks in (
            (f"{curve}: ceiling", "mi_ceiling_nats", {"marker": _BAR, "showlegend": False}),
            (f"{curve}: Gaussians", "information_for_gaussians_nats", {"marker": points | {"symbol": "diamond-open"}}),
            (curve, "mi_bound_nats", {"marker": points, "error_y": errors}),
        ):
            values = _last(table, field, view)
            if any(value is not None for value in values):
                drawn.append(named(label, "%{x}") | {"mode": "markers", "x": words, "y": values} | looks)
                cells = ("n/a" if value is None else number(value) for value in values)
                columns[label] = dict(zip(words, cells, strict=True))
    # Fixed: a zoom of training's axis does not reach this one, nor the other way round.
    axes = {
        "xaxis": axis("step k", view, is_log=False, revision="profile") | {"type": "category", "fixedrange": True},
        "yaxis": axis(f"log N - L ({view.unit})", view, is_log=False, revision=view.unit) | {"fixedrange": True},
    }
    title = f"What N candidates can show: {'no run' if run is None else run.name}"
    steps = dict.fromkeys(word for cells in columns.values() for word in cells)
    rows = [[step, *(cells.get(step, "") for cells in columns.values())] for step in steps]
    in_words = "; ".join(f"{name}: {', '.join(cells.values())}" for name, cells in columns.items())
    figure = {"data": drawn, "layout": layout(view, len(drawn)) | axes}
    return Chart("profile", title, CAPTION, f"{title}. {in_words}.", figure, ["step k", *columns], rows)


def _last(table: Table, field: str, view: View) -> list[float | None]:
    values = table.last.get(field) or [None] * len(table.key.steps)
    return [None if value is None else view.factor(field) * value for value in values]
