"""The page of `cpc monitor`: Dash components around the charts, and the callbacks that update them.

Nothing leaves the machine: Dash serves its own JavaScript, and the server's policy forbids the browser other sources.
"""

import functools
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import dash_ag_grid
import flask
from dash import ALL, Dash, Input, Output, Patch, State, ctx, dcc, html, no_update
from dash.exceptions import DependencyException
from werkzeug.exceptions import HTTPException

from cpc.data.store.atomic import finite, json_text
from cpc.monitor.charts import NAMES, charts
from cpc.monitor.figure import GRAPH_CONFIG, MANY
from cpc.monitor.library import Library
from cpc.monitor.overview import COLUMNS, config_differences, overview
from cpc.monitor.record_types import BOUND
from cpc.monitor.text import replace_surrogates
from cpc.monitor.view import AS_TRAINED, SMOOTHING, SPLITS, UNITS, View
from cpc.pages.chart import Chart

TICK_SECONDS = 0.75
PATIENCE_TICKS = 7  # the server has gone if it answers none of so many ticks
CONFIGS = "options that differ"
MAX_CONFIGS = 12  # largest number of configurations that are compared side by side
MUCH_BYTES = 16 << 20  # if more bytes are unread, the page shows how much is left to read
HEIGHT = "340px"
INDEX = """<!doctype html>
<html lang="en"><head>{%metas%}<title>{%title%}</title>{%favicon%}{%css%}</head>
<body><main>{%app_entry%}</main><footer>{%config%}{%scripts%}{%renderer%}</footer></body></html>
"""
STORES: dict[str, Any] = {  # Dash stores and their initial values
    "revision": None,  # the library's revision that the charts show
    "listed": None,  # the inputs of the table of runs when it was last updated
    "hidden": [],  # names of runs
    "zoom": None,
    "in-view": [],  # names of the charts on the screen or near it
    "drawn": {},  # for each chart, by name, its inputs when it was last updated
    "answered": None,  # the last tick that the server answered, and the time
}
SETTINGS = ("focus", "split", "strategy", "unit", "smoothing", "log_x", "log_y")  # fields of `View` that have controls
PARTS = (("chart", "figure"), ("words", "children"), ("image", "aria-label"), ("section", "className"))  # that change
# Colours of the page, which follow its theme.
THEME = (
    "themeQuartz.withParams({browserColorScheme: 'inherit', fontSize: 13, spacing: 5, backgroundColor: 'var(--page)', "
    "foregroundColor: 'var(--text)', headerTextColor: 'var(--text)', headerBackgroundColor: 'var(--raised)', "
    "borderColor: 'var(--line)', accentColor: 'var(--accent)'})"
)
IN_VIEW = """(_, known) => {  // the charts on the screen, or at most half a screen away
    const isNear = ({top, bottom}) => bottom > -0.5 * window.innerHeight && top < 1.5 * window.innerHeight;
    const near = [...document.querySelectorAll(".chart")].filter((each) => isNear(each.getBoundingClientRect()));
    const names = near.map((each) => each.dataset.name);
    return String(names) === String(known) ? window.dash_clientside.no_update : names;
}"""
# Without an alarm, a page whose server has stopped would look like a page of runs without new records.
ALARM = f"""(tick, answered) => !answered || tick - answered[0] < {PATIENCE_TICKS} ? "" :
    `No answer from cpc monitor since ${{answered[1]}}: it has ended, cannot be reached, or needs another token. ` +
    "This page shows the state at that time."
"""


def build_app(library: Library) -> Dash:
    """Return the app with the page of a library, on which `Library.start` was called."""
    assets = str(Path(__file__).parent / "assets")
    app = Dash(
        __name__,
        title="cpc monitor",
        update_title="",
        assets_folder=assets,
        assets_ignore="^export",
        index_string=INDEX,
    )
    app.layout = _page
    app.server.register_error_handler(Exception, _answer_error)
    app.clientside_callback(IN_VIEW, Output("in-view", "data"), Input("tick", "n_intervals"), State("in-view", "data"))
    app.clientside_callback(ALARM, Output("alarm", "children"), Input("tick", "n_intervals"), State("answered", "data"))
    _add_run_table(app, library)
    _add_charts(app, library)
    return app


def _answer_error(error: Exception) -> flask.Response | HTTPException:
    """Answer 404 to unknown paths and 400 to unknown callbacks and invalid values; Dash would answer 500."""
    if isinstance(error, HTTPException):
        return error
    if isinstance(error, DependencyException):
        return flask.Response("404: no such file\n", 404)
    reason = replace_surrogates(f"{type(error).__name__}: {error}").splitlines()[0]
    print(f"cpc monitor: a call of the page could not be answered: {reason}", file=sys.stderr)
    return flask.Response("400: invalid values; load the page again\n", 400)


def _page() -> html.Div:
    """Return the initial layout; Dash calls this function on every visit."""
    runs = [
        {
            "field": "show",
            "headerName": "show",
            "editable": True,
            "cellRenderer": "agCheckboxCellRenderer",
            "filter": False,
        },
        {
            "field": "name",
            "headerName": "run",
            "sort": "asc",
            "cellStyle": {"function": "({color: params.data.colour})"},
        },
        {
            "field": "badges",
            "cellRenderer": "Badges",
            "cellDataType": False,
            "tooltipField": "reasons",
            "minWidth": 150,
        },
        *(
            {"field": name, "headerName": heading, "type": "rightAligned"}
            | {"valueFormatter": {"function": f"params.data.{name}_text"}}
            for name, heading in COLUMNS.items()
        ),
        {"field": "reasons", "headerName": "reasons of the badges"},
    ]
    return html.Div(
        [
            dcc.Interval(id="tick", interval=1000 * TICK_SECONDS),
            *(dcc.Store(id=name, data=data) for name, data in STORES.items()),
            html.P(id="alarm", role="alert"),
            html.H1("cpc monitor"),
            html.P(id="notice", role="status"),
            html.Section(
                [
                    html.H2("Runs"),
                    html.Div(
                        [
                            dcc.Input("", "search", id="search", placeholder="search names and badges", debounce=0.3),
                            html.Button("show all found", id="show-all"),
                            html.Button("hide all found", id="hide-all"),
                        ],
                        className="controls",
                    ),
                    _grid(
                        "runs",
                        "Table of runs",
                        columnDefs=runs,
                        getRowId="params.data.name",
                        defaultColDef={"filter": True},
                    ),
                ]
            ),
            _controls(),
            html.Div([_chart_section(name) for name in NAMES], className="grid"),
            html.Div(
                [
                    html.Label("values of", htmlFor="table-of"),
                    dcc.Dropdown([*NAMES, CONFIGS], "bound", id="table-of", clearable=False, className="wide"),
                ],
                className="controls",
            ),
            _grid("values", "Values of the chosen chart"),
        ]
    )


def _controls() -> html.Div:
    shared = {"persistence": True, "persistence_type": "local", "inline": True}

    def choice(legend: str, control: Any, wide: bool = False) -> html.Fieldset:
        return html.Fieldset([html.Legend(legend), control], className="wide" if wide else "")

    def radio(name: str, options: Sequence[Any]) -> dcc.RadioItems:
        return dcc.RadioItems(list(options), options[0], id=name, **shared)

    def switch(name: str, label: str) -> dcc.Checklist:
        return dcc.Checklist([{"label": label, "value": "on"}], [], id=name, **shared)

    smoothing = [{"label": "none" if n == 1 else f"{n} records", "value": n} for n in SMOOTHING]
    return html.Div(
        [
            choice("records of", radio("split", SPLITS)),
            choice("negatives", dcc.Dropdown([AS_TRAINED], AS_TRAINED, id="strategy", clearable=False), wide=True),
            choice("steps k of", dcc.Dropdown([], None, id="focus", placeholder="the first run shown"), wide=True),
            choice("information in", radio("unit", UNITS)),
            choice("smoothing", dcc.RadioItems(smoothing, 1, id="smoothing", **shared)),
            choice("logarithmic", html.Div([switch("log_x", "steps"), switch("log_y", "values")], className="row")),
            html.Button("show all steps", id="all-steps"),
            choice("theme", radio("theme", ("system", "light", "dark"))),
        ],
        className="controls",
        role="group",
        **{"aria-label": "Settings of all charts"},
    )


def _chart_section(name: str) -> html.Section:
    def part(kind: str) -> dict[str, str]:
        return {"type": kind, "name": name}

    figure = {"data": [], "layout": {"xaxis": {"visible": False}, "yaxis": {"visible": False}}}
    graph = dcc.Graph(id=part("chart"), config=GRAPH_CONFIG, style={"height": HEIGHT}, figure=figure)
    # The height is reserved from the start, so that the page can determine which charts are on the screen.
    image = html.Div(graph, id=part("image"), role="img", className="figure", style={"minHeight": HEIGHT})
    return html.Section(
        [html.Div(id=part("words")), image], id=part("section"), className="chart", **{"data-name": name}
    )


def _grid(name: Any, label: str, **options: Any) -> html.Div:
    """Return a table that scrolls by keyboard."""
    settings = {"theme": {"function": THEME}, "animateRows": False, "enableCellTextSelection": True}
    settings |= {"suppressColumnVirtualisation": True, "autoSizeStrategy": {"type": "fitCellContents"}}
    grid = dash_ag_grid.AgGrid(id=name, dashGridOptions=settings, **options)
    return html.Div(grid, role="region", **{"aria-label": label})


def _height(rows: Sequence[Any]) -> dict[str, str]:
    """Return the style of a table whose rows fit in, or scroll."""
    return {"height": f"{min(400, 70 + 33 * len(rows))}px"}


def _add_run_table(app: Dash, library: Library) -> None:
    @app.callback(
        Output("runs", "rowData"),
        Output("runs", "style"),
        Output("notice", "children"),
        Output("strategy", "options"),
        Output("focus", "options"),
        Output("revision", "data"),
        Output("listed", "data"),
        Output("answered", "data"),
        Input("tick", "n_intervals"),
        Input("hidden", "data"),
        Input("unit", "value"),
        State("listed", "data"),
    )
    def list_runs(tick: int | None, hidden: list[str], unit: str, listed: Any) -> Any:
        answered = tick or 0, time.strftime("%H:%M:%S")
        with library.lock:
            # The clock updates the table at least every five seconds, because ages grow, and a run can become stale.
            inputs = [library.revision, int(time.time() / 5), hidden, unit]
            if inputs == listed:
                return (*(no_update,) * 7, answered)
            rows = overview(library, unit)
            notice = " ".join(_notices(library, rows))
            strategies = sorted({t.key.names[1] for run in library.runs.values() for t in run.tables(BOUND)})
            rows = [row | {"show": row["name"] not in hidden} for row in rows]
            shown = [row["name"] for row in rows if row["show"]]
            revision = no_update if listed and listed[0] == library.revision else library.revision
            return rows, _height(rows), notice, [AS_TRAINED, *strategies], shown, revision, inputs, answered

    @app.callback(Output("runs", "dashGridOptions"), Input("search", "value"), prevent_initial_call=True)
    def search(text: str | None) -> Patch:
        options = Patch()
        options["quickFilterText"] = text or ""
        return options

    @app.callback(
        Output("hidden", "data"),
        Input("runs", "cellValueChanged"),
        Input("show-all", "n_clicks"),
        Input("hide-all", "n_clicks"),
        State("hidden", "data"),
        State("runs", "virtualRowData"),
        prevent_initial_call=True,
    )
    def hide_or_show(changes: Any, _: int | None, __: int | None, hidden: list[str], found: Any) -> list[str]:
        if ctx.triggered_id == "runs":
            return sorted(set(hidden) ^ {change["data"]["name"] for change in changes})
        names = {row["name"] for row in found}
        return sorted(set(hidden) - names if ctx.triggered_id == "show-all" else set(hidden) | names)


def _notices(library: Library, rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the sentences above the table of runs."""
    if (backlog := sum(run.backlog_bytes for run in library.runs.values())) > MUCH_BYTES:
        yield f"Reading: {backlog / 1e6:.1f} MB are left to read."
    if rows:
        yield f"{len(rows)} run{'s' if len(rows) > 1 else ''}."
    else:
        roots = replace_surrogates(", ".join(map(str, library.roots)))
        yield f"No run below {roots} yet: a run is a folder with bound.jsonl. New runs will appear here."
    if names := ", ".join([row["name"] for row in rows if row["notes"]][:5]):
        yield f"The files of {names} have problems: see the reasons of the badges."
    if library.error_message:
        yield f"{library.error_message}."


def _add_charts(app: Dash, library: Library) -> None:
    @app.callback(
        Output("zoom", "data"),
        Input({"type": "chart", "name": ALL}, "relayoutData"),
        Input("all-steps", "n_clicks"),
        State("log_x", "value"),
        prevent_initial_call=True,
    )
    def zoom(_: Any, __: int | None, log_x: list[str]) -> Any:
        """Return the range of steps after a zoom in any chart; None after a double click, which shows all steps."""
        if ctx.triggered_id == "all-steps":
            return None
        for change in (each["value"] or {} for each in ctx.triggered):
            if "xaxis.autorange" in change:
                return None
            ends = change.get("xaxis.range") or [change.get(f"xaxis.range[{end}]") for end in (0, 1)]
            if None not in ends:
                return [10**end for end in ends] if log_x else ends
        return no_update

    @app.callback(
        *(Output({"type": kind, "name": ALL}, field) for kind, field in PARTS),
        Output("values", "columnDefs"),
        Output("values", "rowData"),
        Output("values", "style"),
        Output("drawn", "data"),
        inputs={
            "revision": Input("revision", "data"),
            "hidden": Input("hidden", "data"),
            "in_view": Input("in-view", "data"),
            "table_of": Input("table-of", "value"),
            "states": State("drawn", "data"),
            "view": {
                "zoom": Input("zoom", "data"),
                "num_resets": Input("all-steps", "n_clicks"),
                "settings": {name: Input(name, "value") for name in SETTINGS},
            },
        },
        prevent_initial_call=True,
    )
    def draw(
        revision: int | None, hidden: list[str], in_view: list[str], table_of: str, states: dict[str, str], view: Any
    ) -> Any:
        inputs = json_text(finite((revision, hidden, view)))
        with library.lock:
            runs = [run for name, run in library.runs.items() if name not in hidden]
            # A browser needs a sixth of a second for a chart of a hundred runs, so charts off the screen come later.
            outdated = [name for name in NAMES if (name in in_view or len(runs) <= MANY) and states.get(name) != inputs]
            names = [*outdated, table_of]
            found = library.skip_unreadable(runs, functools.partial(charts, view=_view(**view), names=names))
            by_name = {chart.name: chart for chart in found}
            table = by_name[table_of].table if table_of in by_name else config_differences(runs[:MAX_CONFIGS])
        parts = [_parts(by_name[name]) if name in outdated else [no_update] * len(PARTS) for name in NAMES]
        fields = [str(index) for index in range(len(table.header))]
        columns = [{"field": field, "headerName": heading} for field, heading in zip(fields, table.header, strict=True)]
        rows = [dict(zip(fields, row, strict=True)) for row in table.rows]
        return (
            *map(list, zip(*parts, strict=True)),
            columns,
            rows,
            _height(rows),
            states | dict.fromkeys(outdated, inputs),
        )


def _parts(chart: Chart) -> list[Any]:
    """Return the values of `PARTS`."""
    caption = "No run shown has such records yet." if chart.is_empty else chart.caption
    words = [html.H2(chart.title), html.P(caption, className="caption")]
    return [chart.figure, words, chart.alt, "chart is-empty" if chart.is_empty else "chart"]


def _view(settings: dict[str, Any], zoom: Any, num_resets: int | None) -> View:
    """Return the view that the page's settings describe.

    Raises:
        ValueError: if a setting has no allowed value.
    """
    low, high = zoom or (0, 0)
    settings |= {"log_x": bool(settings["log_x"]), "log_y": bool(settings["log_y"])}
    return View(**settings, x_range=(float(low), float(high)) if zoom else None, num_resets=num_resets or 0)
