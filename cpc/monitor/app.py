"""The page of `cpc monitor`: Dash components around the charts, and the callbacks that update them.

Nothing leaves the machine: Dash serves its own JavaScript, and the server's policy forbids the browser other sources.
"""

import functools
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import flask
from dash import ALL, ClientsideFunction, Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.exceptions import DependencyException
from werkzeug.exceptions import HTTPException

from cpc.data.store.atomic import finite, json_text
from cpc.monitor.charts import NAMES, charts
from cpc.monitor.figure import GRAPH_CONFIG, MANY
from cpc.monitor.library import Library
from cpc.monitor.markup import badge_reasons, chart_heading, run_table
from cpc.monitor.overview import Row, config_differences, overview, search_and_sort
from cpc.monitor.record_types import BOUND
from cpc.monitor.run import Run
from cpc.monitor.text import replace_surrogates
from cpc.monitor.view import AS_TRAINED, View
from cpc.pages.html import Node, node, scroll, table

TICK_SECONDS = 0.75
SMOOTHING = (1, 5, 21, 101)
MAX_CONFIGS = 12  # largest number of configurations that are compared side by side
MUCH_BYTES = 16 << 20  # if more bytes are unread, the page shows how much is left to read
HEIGHT = "340px"
INDEX = """<!doctype html>
<html lang="en"><head>{%metas%}<title>{%title%}</title>{%favicon%}{%css%}</head>
<body><main>{%app_entry%}</main><footer>{%config%}{%scripts%}{%renderer%}</footer></body></html>
"""
STORES: dict[str, dict[str, Any]] = {  # Dash stores and their initial values
    "revision": {},  # the library's revision that the charts show
    "listed": {},  # the inputs of the table of runs when it was last updated
    "hidden": {"data": []},
    "sort": {"data": ["name", False]},
    "zoom": {},
    "in-view": {"data": []},  # names of the charts on the screen or near it
    "drawn": {"data": {}},  # for each chart, by name, its inputs when it was last updated
    "theme-now": {},
    "show-asked": {},  # the run whose button was pressed, and the count of presses
    "sort-asked": {},  # the column whose button was pressed, and the count of presses
    "markup-of-runs": {},  # nodes for `markup.js`, by the id of their parent
    "markup-of-charts": {},
    "answered": {},  # time of the server's last answer
}
SETTINGS = ("focus", "split", "strategy", "unit", "smoothing", "log_x", "log_y")  # fields of `View` that have controls
_CHART = {"type": "chart", "name": ALL}
_CALLBACKS = "/_dash-update-component"


def build_app(library: Library) -> Dash:
    """Return the app with the page of a library, on which `Library.start` was called."""
    app = Dash(
        __name__,
        title="cpc monitor",
        update_title="",
        serve_locally=True,
        assets_folder=str(Path(__file__).parent / "assets"),
        assets_ignore="^export",
        index_string=INDEX,
    )
    app.layout = _page
    _reject_invalid_requests(app)
    _add_run_list(app, library)
    _add_reader_controls(app, library)
    _add_charts(app, library)
    return app


def _reject_invalid_requests(app: Dash) -> None:
    """Answer 404 or 400 to unknown paths, unknown callbacks and invalid values; Dash would answer 500."""
    app.server.register_error_handler(DependencyException, lambda _: flask.Response("404: no such file\n", 404))

    @app.server.before_request
    def reject_unknown_callbacks() -> flask.Response | None:
        if (flask.request.method, flask.request.path) != ("POST", _CALLBACKS):
            return None
        call = flask.request.get_json(silent=True)
        is_known = isinstance(call, dict) and str(call.get("output")) in app.callback_map
        return None if is_known else flask.Response("400: unknown callback; load the page again\n", 400)

    @app.server.errorhandler(Exception)
    def reject_unusable_values(error: Exception) -> flask.Response | HTTPException:
        if isinstance(error, HTTPException):
            return error
        if flask.request.path != _CALLBACKS:
            raise error
        reason = replace_surrogates(f"{type(error).__name__}: {error}").splitlines()[0]
        print(f"cpc monitor: a call of the page could not be answered: {reason}", file=sys.stderr)
        return flask.Response("400: invalid values; load the page again\n", 400)


def _page() -> html.Div:
    """Return the initial layout; Dash calls this function on every visit."""
    return html.Div(
        [
            dcc.Interval(id="tick", interval=1000 * TICK_SECONDS),
            *(dcc.Store(id=name, **begins) for name, begins in STORES.items()),
            html.H1("cpc monitor"),
            html.P(id="notice", className="notice", role="status"),
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
                    _scrolling("runs", "Table of runs"),
                    html.Details([html.Summary("Reasons of the badges"), html.Div(id="reasons")]),
                ]
            ),
            _controls(),
            html.Div([_chart_section(name) for name in NAMES], className="grid"),
            html.Details([html.Summary("Configurations: where they differ"), html.Div(id="configs")]),
        ]
    )


def _controls() -> html.Div:
    shared = {"persistence": True, "persistence_type": "local", "inline": True}

    def choice(legend: str, control: Any, wide: bool = False) -> html.Fieldset:
        return html.Fieldset([html.Legend(legend), control], className="wide" if wide else "")

    def radio(name: str, *options: Any) -> dcc.RadioItems:
        first = options[0]
        return dcc.RadioItems(list(options), first["value"] if isinstance(first, dict) else first, id=name, **shared)

    def switch(name: str, label: str) -> dcc.Checklist:
        return dcc.Checklist([{"label": label, "value": "on"}], [], id=name, **shared)

    smoothing = [{"label": "none" if n == 1 else f"{n} records", "value": n} for n in SMOOTHING]
    return html.Div(
        [
            choice("records of", radio("split", "training", "held-out")),
            choice("negatives", dcc.Dropdown([AS_TRAINED], AS_TRAINED, id="strategy", clearable=False), wide=True),
            choice("steps k of", dcc.Dropdown([], None, id="focus", placeholder="the first run shown"), wide=True),
            choice("information in", radio("unit", "nats", "bits")),
            choice("smoothing", radio("smoothing", *smoothing)),
            choice("logarithmic", html.Div([switch("log-x", "steps"), switch("log-y", "values")], className="row")),
            html.Button("show all steps", id="all-steps"),
            choice("theme", radio("theme", "system", "light", "dark")),
        ],
        className="controls",
        role="group",
        **{"aria-label": "Settings of all charts"},
    )


def _chart_section(name: str) -> html.Section:
    graph = dcc.Graph(
        id={"type": "chart", "name": name},
        config=GRAPH_CONFIG,
        style={"height": HEIGHT},
        figure={"data": [], "layout": {"xaxis": {"visible": False}, "yaxis": {"visible": False}}},
    )
    # The height is reserved from the start, so that the page can determine which charts are on the screen.
    figure = {"className": "figure", "style": {"minHeight": HEIGHT}, "role": "img", "aria-labelledby": f"alt-{name}"}
    # The table inside is replaced at every update; this element stays, and keeps the scroll position.
    values = _scrolling(f"values-{name}", f"Values of the chart {name}")
    return html.Section(
        [
            html.Div(id=f"words-{name}"),
            html.Div(graph, **figure),
            html.Details([html.Summary("values"), values], open=name == "bound"),
        ],
        id=f"section-{name}",
        className="chart",
    )


def _scrolling(name: str, label: str) -> html.Div:
    """Return an area with a scroll bar, which also scrolls by keyboard."""
    return html.Div(id=name, className="scroll", tabIndex=0, role="region", **{"aria-label": label})


def _add_run_list(app: Dash, library: Library) -> None:
    @app.callback(
        Output("markup-of-runs", "data"),
        Output("notice", "children"),
        Output("strategy", "options"),
        Output("focus", "options"),
        Output("revision", "data"),
        Output("listed", "data"),
        Output("answered", "data"),
        Input("tick", "n_intervals"),
        Input("search", "value"),
        Input("sort", "data"),
        Input("hidden", "data"),
        Input("unit", "value"),
        State("listed", "data"),
    )
    def list_runs(_: int | None, search: str | None, sort: list[Any], hidden: list[str], unit: Any, listed: Any) -> Any:
        with library.lock:
            # The clock updates the table at least every five seconds, because ages grow, and a run can become stale.
            inputs = [library.revision, int(time.time() / 5), search, sort, hidden, unit]
            if inputs == listed:
                return (*(no_update,) * 6, time.time())
            rows = overview(library, unit)
            strategies = sorted({t.key.names[1] for run in library.runs.values() for t in run.tables(BOUND)})
            shown = [row.name for row in rows if row.name not in hidden]
            return (
                {
                    "runs": run_table(search_and_sort(rows, search or "", *sort), hidden, *sort),
                    "reasons": badge_reasons(rows),
                },
                _notice(library, rows),
                [AS_TRAINED, *strategies],
                shown,
                no_update if listed and listed[0] == library.revision else library.revision,
                inputs,
                time.time(),
            )


def _add_reader_controls(app: Dash, library: Library) -> None:
    for file, function, later, *dependencies in (
        ("monitor", "zoom", True, Output("zoom", "data"), Input(_CHART, "relayoutData"), State("log-x", "value")),
        ("monitor", "inView", False, Output("in-view", "data"), Input("tick", "n_intervals"), State("in-view", "data")),
        ("monitor", "showAllSteps", True, Input("all-steps", "n_clicks")),
        ("monitor", "answered", False, Input("answered", "data")),
        ("monitor", "theme", False, Output("theme-now", "data"), Input("theme", "value")),
        ("markup", "show", True, Input("markup-of-runs", "data")),
        ("markup", "show", True, Input("markup-of-charts", "data")),
    ):
        app.clientside_callback(ClientsideFunction(file, function), *dependencies, prevent_initial_call=later)

    @app.callback(
        Output("hidden", "data"),
        Input("show-asked", "data"),
        Input("show-all", "n_clicks"),
        Input("hide-all", "n_clicks"),
        State("hidden", "data"),
        State("search", "value"),
        prevent_initial_call=True,
    )
    def hide_or_show(press: Any, _: int | None, __: int | None, hidden: list[str], search: str | None) -> list[str]:
        if ctx.triggered_id == "show-asked":
            return sorted(set(hidden) ^ {press[0]})
        with library.lock:
            matches = {row.name for row in search_and_sort(overview(library), search or "")}
        return sorted(set(hidden) - matches if ctx.triggered_id == "show-all" else set(hidden) | matches)

    @app.callback(Output("sort", "data"), Input("sort-asked", "data"), State("sort", "data"), prevent_initial_call=True)
    def sort_by(press: list[Any], sort: list[Any]) -> list[Any]:
        column = press[0]
        return [column, not sort[1] if sort[0] == column else column != "name"]


def _add_charts(app: Dash, library: Library) -> None:
    @app.callback(
        output=(Output(_CHART, "figure"), Output("markup-of-charts", "data"), Output("drawn", "data")),
        inputs={
            "revision": Input("revision", "data"),
            "hidden": Input("hidden", "data"),
            "in_view": Input("in-view", "data"),
            "zoom": Input("zoom", "data"),
            "states": State("drawn", "data"),
            "settings": {name: Input(name.replace("_", "-"), "value") for name in SETTINGS},
            "theme": Input("theme-now", "data"),
        },
        prevent_initial_call=True,
    )
    def draw(
        hidden: list[str], in_view: list[str], zoom: Any, states: dict[str, str], settings: Any, **now: Any
    ) -> Any:
        nothing = [no_update] * len(NAMES), no_update, no_update
        if None in now.values():  # the page has just been loaded
            return nothing
        inputs = json_text(finite((hidden, zoom, settings, now)))
        with library.lock:
            runs = [run for name, run in library.runs.items() if name not in hidden]
            # A browser needs a sixth of a second for a chart of a hundred runs, so charts off the screen come later.
            outdated = [name for name in NAMES if (name in in_view or len(runs) <= MANY) and states.get(name) != inputs]
            if not outdated:
                return nothing
            settings |= {"log_x": bool(settings["log_x"]), "log_y": bool(settings["log_y"])}
            x_range = (float(zoom[0]), float(zoom[1])) if zoom else None
            view = View(**settings, theme=now["theme"], x_range=x_range)
            all_charts = library.skip_unreadable(runs, functools.partial(charts, view=view))
            configs = _configs(runs)
        markup = {f"words-{chart.name}": chart_heading(chart, chart.name) for chart in all_charts}
        markup |= {f"values-{chart.name}": table(*chart.table[:2]) for chart in all_charts}
        figures = [chart.figure if chart.name in outdated else no_update for chart in all_charts]
        return figures, markup | {"configs": configs}, states | dict.fromkeys(outdated, inputs)


def _notice(library: Library, rows: Sequence[Row]) -> str:
    sentences = []
    if library.has_stopped:
        sentences.append("The monitor has stopped reading runs: start it again to see new records.")
    elif (backlog := sum(run.backlog_bytes for run in library.runs.values())) > MUCH_BYTES:
        sentences.append(f"Reading: {backlog / 1e6:.1f} MB are left to read.")
    if not rows:
        roots = replace_surrogates(", ".join(map(str, library.roots)))
        sentences.append(f"No run below {roots} yet: a run is a folder with bound.jsonl. New runs will appear here.")
    else:
        sentences.append(f"{len(rows)} run{'s' if len(rows) > 1 else ''}.")
    if names := ", ".join([row.name for row in rows if row.notes][:5]):
        sentences.append(f"The files of {names} have problems: see the reasons of the badges.")
    if library.error_message:
        sentences.append(f"{library.error_message}.")
    return " ".join(sentences)


def _configs(runs: Sequence[Run]) -> Node:
    if not 2 <= len(runs) <= MAX_CONFIGS:
        return node("p", f"Show 2 to {MAX_CONFIGS} runs to compare their config.yaml; {len(runs)} are shown.")
    header, rows = config_differences(runs)
    if not rows:
        return node("p", "The runs shown have the same options.")
    return node("div", [scroll(table(header, rows), "Options that differ")], class_="config")
