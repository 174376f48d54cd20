"""The page of `cpc monitor`: Dash components around the charts, and the callbacks that update them.

Nothing leaves the machine: Dash serves its own JavaScript, and the server's policy forbids the browser other sources.
"""

import functools
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import dash_ag_grid
import flask
from dash import ALL, Dash, Input, Output, Patch, State, ctx, dcc, html, no_update
from dash.exceptions import DependencyException, PreventUpdate
from werkzeug.exceptions import HTTPException

from cpc.data.store.atomic import finite, json_text
from cpc.monitor.charts import NAMES, charts
from cpc.monitor.figure import GRAPH_CONFIG, MANY, Chart
from cpc.monitor.library import Library
from cpc.monitor.overview import COLUMNS, config_differences, overview
from cpc.monitor.record_types import BOUND
from cpc.monitor.table import replace_surrogates
from cpc.monitor.view import AS_TRAINED, SMOOTHING, SPLITS, UNITS, View

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
    "listed": None,  # the library's revision and the other inputs of the table of runs when it was last updated
    "hidden": [],  # names of runs
    "zoom": None,
    "in-view": [],  # names of the charts on the screen or near it
    "drawn": {},  # for each chart, by name, its inputs when it was last updated
    "answered": None,  # the last tick that the server answered, and the time
}
SETTINGS = ("focus", "split", "strategy", "unit", "smoothing", "log")  # fields of `View` that have controls
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
    `No answer from cpc monitor since ${{answered[1]}}. This page shows the state at that time.`
"""


def build_app(library: Library) -> Dash:
    """Return the app with the page of a library, on which `Library.start` was called."""
    app = Dash(__name__, title="cpc monitor", update_title="", assets_ignore="^export", index_string=INDEX)
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
        dict(field="show", headerName="show", editable=True, cellRenderer="agCheckboxCellRenderer", filter=False),
        dict(field="name", headerName="run", sort="asc", cellStyle={"function": "({color: params.data.colour})"}),
        dict(field="badges", headerName="badges", cellRenderer="Badges", cellDataType=False, tooltipField="reasons"),
        *(
            dict(field=name, headerName=heading, valueFormatter={"function": f"params.data.{name}_text"})
            for name, heading in COLUMNS.items()
        ),
        dict(field="reasons", headerName="reasons of the badges"),
    ]
    return html.Div(
        [
            dcc.Interval(id="tick", interval=1000 * TICK_SECONDS),
            *(dcc.Store(id=name, data=data) for name, data in STORES.items()),
            html.P(id="alarm", role="alert"),
            html.H1("cpc monitor"),
            html.P(id="notice", role="status"),
            html.H2("Runs"),
            _bar(
                "Runs in the charts",
                dcc.Input("", "search", id="search", placeholder="search names and badges", debounce=0.3),
                html.Button("show all found", id="show-all"),
                html.Button("hide all found", id="hide-all"),
            ),
            _grid(
                "runs", "Table of runs", columnDefs=runs, getRowId="params.data.name", defaultColDef={"filter": True}
            ),
            _controls(),
            html.Div([_chart_section(name) for name in NAMES], className="grid"),
            _bar(
                "Table of values",
                _choice("values of", dcc.Dropdown([*NAMES, CONFIGS], "bound", id="table-of", clearable=False)),
            ),
            _grid("values", "Values of the chosen chart"),
        ]
    )


def _controls() -> html.Div:
    shared = {"persistence": True, "persistence_type": "local", "inline": True}

    def radio(name: str, options: Sequence[Any]) -> dcc.RadioItems:
        return dcc.RadioItems(list(options), options[0], id=name, **shared)

    axes = [{"label": "steps", "value": "x"}, {"label": "values", "value": "y"}]
    return _bar(
        "Settings of all charts",
        _choice("records of", radio("split", SPLITS)),
        _choice("negatives", dcc.Dropdown([AS_TRAINED], AS_TRAINED, id="strategy", clearable=False)),
        _choice("steps k of", dcc.Dropdown([], None, id="focus", placeholder="the first run shown")),
        _choice("information in", radio("unit", UNITS)),
        _choice("mean over records", radio("smoothing", SMOOTHING)),
        _choice("logarithmic", dcc.Checklist(axes, [], id="log", **shared)),
        html.Button("show all steps", id="all-steps"),
        _choice("theme", radio("theme", ("system", "light", "dark"))),
    )


def _bar(label: str, *controls: Any) -> html.Div:
    return html.Div(controls, className="controls", role="group", **{"aria-label": label})


def _choice(legend: str, control: Any) -> html.Fieldset:
    return html.Fieldset([html.Legend(legend), control])


def _chart_section(name: str) -> html.Section:
    ids = {kind: {"type": kind, "name": name} for kind, _ in PARTS}
    figure = {"data": [], "layout": {"xaxis": {"visible": False}, "yaxis": {"visible": False}}}
    graph = dcc.Graph(id=ids["chart"], config=GRAPH_CONFIG, style={"height": HEIGHT}, figure=figure)
    # The height is reserved from the start, so that the page can determine which charts are on the screen.
    image = html.Div(graph, id=ids["image"], role="img", className="figure", style={"minHeight": HEIGHT})
    content = [html.Div(id=ids["words"]), image]
    return html.Section(content, id=ids["section"], className="chart", **{"data-name": name})


def _grid(name: str, label: str, **options: Any) -> html.Div:
    """Return a table that scrolls by keyboard."""
    settings = {"theme": {"function": THEME}, "animateRows": False, "enableCellTextSelection": True}
    settings |= {"suppressColumnVirtualisation": True, "autoSizeStrategy": {"type": "fitCellContents"}}
    grid = dash_ag_grid.AgGrid(id=name, dashGridOptions=settings, **options)
    return html.Div(grid, role="region", **{"aria-label": label})


def _height(rows: Sequence[Any]) -> dict[str, str]:
    """Return the style of a table whose rows fit in, or scroll."""
    return {"height": f"{min(400, 70 + 33 * len(rows))}px"}


def _add_run_table(app: Dash, library: Library) -> None:
    outputs = {"notice": "children", "strategy": "options", "focus": "options", "listed": "data", "answered": "data"}

    @app.callback(
        Output("runs", "rowData"),
        Output("runs", "style"),
        *(Output(name, field) for name, field in outputs.items()),
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
                return (*(no_update,) * 6, answered)
            rows = [row | {"show": row["name"] not in hidden} for row in overview(library, unit)]
            notice = " ".join(_notices(library, rows))
            strategies = sorted({t.key.names[1] for run in library.runs.values() for t in run.tables(BOUND)})
        shown = [row["name"] for row in rows if row["show"]]
        return rows, _height(rows), notice, [AS_TRAINED, *strategies], shown, inputs, answered

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
        names = {row["name"] for row in found or ()}
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
        State("log", "value"),
        prevent_initial_call=True,
    )
    def zoom(_: Any, __: int | None, log: list[str]) -> Any:
        """Return the range of steps after a zoom in any chart; None after a double click, which shows all steps."""
        if ctx.triggered_id == "all-steps":
            return None
        for change in (each["value"] or {} for each in ctx.triggered):
            if "xaxis.autorange" in change:
                return None
            ends = change.get("xaxis.range") or [change.get(f"xaxis.range[{end}]") for end in (0, 1)]
            if None not in ends:
                return [10**end for end in ends] if "x" in log else ends
        return no_update

    @app.callback(
        *(Output({"type": kind, "name": ALL}, field) for kind, field in PARTS),
        *(Output("values", field) for field in ("columnDefs", "rowData", "style")),
        Output("drawn", "data"),
        inputs={
            "listed": Input("listed", "data"),
            "in_view": Input("in-view", "data"),
            "table_of": Input("table-of", "value"),
            "drawn": State("drawn", "data"),
            "view": {
                "x_range": Input("zoom", "data"),
                "num_resets": Input("all-steps", "n_clicks"),
                **{name: Input(name, "value") for name in SETTINGS},
            },
        },
        prevent_initial_call=True,
    )
    def draw(listed: Any, in_view: list[str], table_of: str, drawn: dict[str, str], view: dict[str, Any]) -> Any:
        if listed is None:  # the page has just been loaded
            raise PreventUpdate
        revision, _, hidden, _ = listed
        inputs = json_text(finite((revision, hidden, view)))
        with library.lock:
            runs = [run for name, run in library.runs.items() if name not in hidden]
            # A browser needs a sixth of a second for a chart of a hundred runs, so charts off the screen come later.
            outdated = [name for name in NAMES if (name in in_view or len(runs) <= MANY) and drawn.get(name) != inputs]
            draw_all = functools.partial(charts, view=View(**view), names=[*outdated, table_of])
            by_name = {chart.name: chart for chart in library.skip_unreadable(runs, draw_all)}
            table = by_name[table_of].table if table_of in by_name else config_differences(runs[:MAX_CONFIGS])
        parts = [_parts(by_name[name]) if name in outdated else [no_update] * len(PARTS) for name in NAMES]
        columns = [{"field": str(index), "headerName": heading} for index, heading in enumerate(table.header)]
        rows = [{str(index): cell for index, cell in enumerate(row)} for row in table.rows]
        drawn |= dict.fromkeys(outdated, inputs)
        return *map(list, zip(*parts, strict=True)), columns, rows, _height(rows), drawn


def _parts(chart: Chart) -> list[Any]:
    """Return the values of `PARTS`."""
    caption = "No run shown has such records yet." if chart.is_empty else chart.caption
    words = [html.H2(chart.title), html.P(caption, className="caption")]
    return [chart.figure, words, chart.alt, "chart is-empty" if chart.is_empty else "chart"]
