"""What N candidates can show: the last readings by step k, between the ceiling and what they would be of Gaussians."""

from collections.abc import Sequence
from html import escape
from typing import Any

from cpc.monitor.figure import GREY, RUN_COLOURS, Chart, axis, layout, number
from cpc.monitor.newest import current
from cpc.monitor.run import Run
from cpc.monitor.table import Table
from cpc.monitor.view import View

CAPTION = (
    "The last record of each split and strategy: points with their standard errors; a grey bar is the ceiling log N. A "
    "hollow diamond is the information of Gaussians of which an exact critic with as many candidates would read the "
    "point, where the point is a bound: far above it, more candidates would show more; missing, the reading is too "
    "near the ceiling to tell."
)


def profile_chart(run: Run | None, view: View) -> Chart:
    """One run's splits and strategies side by side over the steps k.

    Args:
        run: the one in focus; None if none is.
        view: settings.
    """
    tables = [] if run is None else current(run)
    words = list(dict.fromkeys(word for table in tables for word in table.key.step_words))
    drawn: list[dict[str, Any]] = []
    columns: list[tuple[str, dict[str, str]]] = []
    for place, table in enumerate(tables):
        curve, colour = " ".join(table.key.names), RUN_COLOURS[place % len(RUN_COLOURS)]
        of_points = {"color": colour, "size": 8}
        errors = {"type": "data", "array": _scaled(table, "standard_error_nats", view), "thickness": 1.5}
        for name, field, looks in (
            ("ceiling", "mi_ceiling_nats", {"marker": _bar(GREY)}),
            ("Gaussians", "information_for_gaussians_nats", {"marker": of_points | {"symbol": "diamond-open"}}),
            ("", "mi_bound_nats", {"marker": of_points, "error_y": errors}),
        ):
            values = _scaled(table, field, view)
            if all(value is None for value in values):
                continue
            label = f"{curve}{name and ': ' + name}"
            drawn.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "x": table.key.step_words,
                    "y": values,
                    "name": escape(label),
                    "showlegend": name != "ceiling",
                    "hovertemplate": f"{escape(label)}<br>%{{x}}: %{{y:.4~g}}<extra></extra>",
                }
                | looks
            )
            cells = zip(table.key.step_words, values, strict=True)
            columns.append((label, {k: "n/a" if value is None else number(value) for k, value in cells}))
    # Fixed: a zoom of training's axis does not reach this one, nor the other way round.
    axes = {
        "xaxis": axis("step k", view, is_log=False, revision="profile") | {"type": "category", "fixedrange": True},
        "yaxis": axis(f"log N - L ({view.unit})", view, is_log=False, revision=view.unit) | {"fixedrange": True},
    }
    title = f"What N candidates can show: {'a run' if run is None else run.name}"
    rows = [[word, *(cells.get(word, "") for _, cells in columns)] for word in words] if columns else []
    told = "; ".join(f"{name}: {', '.join(cells.values())}" for name, cells in columns)
    figure = {"data": drawn, "layout": layout(view, len(drawn)) | axes}
    return Chart("profile", title, CAPTION, f"{title}. {told}.", figure, ["step k", *dict(columns)], rows)


def _scaled(table: Table, field: str, view: View) -> list[float | None]:
    values: Sequence[float | None] = table.last.get(field) or [None] * len(table.key.steps)
    return [None if value is None else value * view.per_nat for value in values]


def _bar(colour: str) -> dict[str, Any]:
    return {"symbol": "line-ew", "size": 18, "line": {"width": 2, "color": colour}}
