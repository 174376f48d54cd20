"""The page of `cpc monitor`: Dash components around the charts, and the callbacks that keep them up to date.

Nothing leaves the machine: Dash serves its own JavaScript, and the browser is told to fetch from nowhere else.
"""

import functools
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import flask
from dash import ALL, ClientsideFunction, Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.exceptions import DependencyException

from cpc.monitor import charts as drawn
from cpc.monitor.figure import GRAPH_CONFIG, MANY
from cpc.monitor.kinds import BOUND
from cpc.monitor.legible import legible
from cpc.monitor.library import Library
from cpc.monitor.markup import Node, node, reasons, run_table, table
from cpc.monitor.overview import Row, arranged, differences, overview
from cpc.monitor.view import AS_TRAINED, View

TICK_SECONDS = 0.75
SMOOTHING = (1, 5, 21, 101)
MAX_CONFIGS = 12  # compared side by side
HEIGHT = "340px"
INDEX = """<!doctype html>
<html lang="en"><head>{%metas%}<title>{%title%}</title>{%favicon%}{%css%}</head>
<body><main>{%app_entry%}</main><footer>{%config%}{%scripts%}{%renderer%}</footer></body></html>
"""
_CHART = {"type": "chart", "name": ALL}


def build_app(library: Library) -> Dash:
    """The page over a library that somebody follows (`Library.start`)."""
    app = Dash(
        __name__,
        title="cpc monitor",
        update_title="",
        serve_locally=True,
        assets_folder=str(Path(__file__).parent / "assets"),
        index_string=INDEX,
        prevent_initial_callbacks=False,
    )
    app.layout = _page
    _refuse_what_no_page_asks(app)
    _keep_runs_up_to_date(app, library)
    _let_the_reader_choose(app, library)
    _draw_charts(app, library)
    return app


def _refuse_what_no_page_asks(app: Dash) -> None:
    """Where Dash would answer 500, and print a traceback: paths of no file, and calls of no callback."""
    app.server.register_error_handler(DependencyException, lambda _: flask.Response("404: no such file\n", 404))

    @app.server.before_request
    def refuse_unknown_callbacks() -> flask.Response | None:
        if (flask.request.method, flask.request.path) != ("POST", "/_dash-update-component"):
            return None
        call = flask.request.get_json(silent=True)
        is_known = isinstance(call, dict) and str(call.get("output")) in app.callback_map
        return None if is_known else flask.Response("400: no callback; load the page again\n", 400)


def _page() -> html.Div:
    """A function, so that every visit begins with what the library holds then."""
    return html.Div(
        [
            dcc.Interval(id="tick", interval=1000 * TICK_SECONDS),
            dcc.Store(id="revision"),  # what the charts show
            dcc.Store(id="listed"),  # what the table of runs shows
            dcc.Store(id="hidden", data=[]),
            dcc.Store(id="sort", data=["name", False]),
            dcc.Store(id="zoom"),
            dcc.Store(id="in-view", data=[]),  # names of the charts that the reader may see
            dcc.Store(id="drawn", data={}),  # by the chart's name: what was asked for when it was drawn
            dcc.Store(id="theme-now"),
            dcc.Store(id="show-asked"),  # the run whose button was pressed, and which press it was
            dcc.Store(id="sort-asked"),  # likewise the column
            dcc.Store(id="markup-of-runs"),  # for `markup.js`, by the part's id
            dcc.Store(id="markup-of-charts"),
            dcc.Store(id="answered"),  # when the server last spoke
            html.H1("cpc monitor"),
            html.P(id="notice", className="notice", role="status"),
            _runs_section(),
            _controls(),
            html.Div([_chart_section(name) for name in drawn.NAMES], className="grid"),
            html.Details(
                [html.Summary("Configurations: where they differ"), html.Div(id="configs")], id="configs-details"
            ),
        ]
    )


def _runs_section() -> html.Section:
    return html.Section(
        [
            html.H2("Runs"),
            html.Div(
                [
                    dcc.Input(
                        id="search", type="search", placeholder="search names and badges", debounce=0.3, value=""
                    ),
                    html.Button("show all found", id="show-all"),
                    html.Button("hide all found", id="hide-all"),
                ],
                className="controls",
            ),
            html.Div(id="runs", **_scrolling("Table of runs")),
            html.Details([html.Summary("What the badges say"), html.Div(id="reasons")]),
        ]
    )


def _controls() -> html.Div:
    kept = {"persistence": True, "persistence_type": "local"}

    def choice(legend: str, control: Any, wide: bool = False) -> html.Fieldset:
        return html.Fieldset([html.Legend(legend), control], className="wide" if wide else "")

    def radio(name: str, options: Sequence[Any], value: Any) -> dcc.RadioItems:
        return dcc.RadioItems(list(options), value, id=name, inline=True, **kept)

    def switch(name: str, label: str) -> dcc.Checklist:
        return dcc.Checklist([{"label": label, "value": "on"}], [], id=name, inline=True, **kept)

    smoothing = [{"label": "none" if n == 1 else f"{n} records", "value": n} for n in SMOOTHING]
    return html.Div(
        [
            choice("records of", radio("split", ("training", "held-out"), "training")),
            choice("negatives", dcc.Dropdown([AS_TRAINED], AS_TRAINED, id="strategy", clearable=False), wide=True),
            choice("steps k of", dcc.Dropdown([], None, id="focus", placeholder="the first run shown"), wide=True),
            choice("information in", radio("unit", ("nats", "bits"), "nats")),
            choice("smoothing", radio("smoothing", smoothing, 1)),
            choice(
                "logarithmic",
                html.Div([switch("log-x", "steps"), switch("log-y", "values")], style={"display": "flex"}),
            ),
            html.Button("show all steps", id="all-steps"),
            choice("theme", radio("theme", ("system", "light", "dark"), "system")),
        ],
        className="controls",
        role="group",
        **{"aria-label": "Settings of all charts"},
    )


def _chart_section(name: str) -> html.Section:
    def part(kind: str) -> dict[str, str]:
        return {"type": kind, "name": name}

    return html.Section(
        [
            html.H2(id=part("title")),
            html.P(id=part("caption"), className="caption"),
            html.Div(
                dcc.Graph(
                    id=part("chart"),
                    config=GRAPH_CONFIG,
                    style={"height": HEIGHT},
                    figure={"data": [], "layout": {"xaxis": {"visible": False}, "yaxis": {"visible": False}}},
                ),
                id=part("figure"),
                className="figure",
                style={"minHeight": HEIGHT},  # from the first moment: what is in sight is drawn first
                role="img",
            ),
            html.Details(
                [
                    html.Summary("values"),
                    # Stays when its table is drawn anew, and with it how far the reader has scrolled.
                    html.Div(id=f"values-{name}", **_scrolling(f"Values of the chart {name}")),
                ],
                open=name == "bound",
            ),
        ],
        id=part("section"),
        className="chart",
    )


def _keep_runs_up_to_date(app: Dash, library: Library) -> None:
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
    def list_runs(_: int | None, search: str | None, sort: list[Any], hidden: list[str], unit: str, listed: Any) -> Any:
        with library.lock:
            # Every five seconds anyway: ages grow, and a silent run becomes stale.
            asked = [library.revision, int(time.time() / 5), search, sort, hidden, unit]
            if asked == listed:
                return (*(no_update,) * 6, time.time())
            rows = overview(library, View(unit="bits" if unit == "bits" else "nats"))
            strategies = sorted({t.key.names[1] for run in library.runs.values() for t in run.tables(BOUND)})
            shown = [row.name for row in rows if row.name not in hidden]
            return (
                {"runs": run_table(arranged(rows, search or "", *sort), hidden, *sort), "reasons": reasons(rows)},
                _notice(library, rows),
                [AS_TRAINED, *strategies],
                shown,
                no_update if listed and listed[0] == library.revision else library.revision,
                asked,
                time.time(),
            )


def _let_the_reader_choose(app: Dash, library: Library) -> None:
    app.clientside_callback(
        ClientsideFunction("monitor", "zoom"),
        Output("zoom", "data"),
        Input(_CHART, "relayoutData"),
        State("log-x", "value"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        ClientsideFunction("monitor", "inView"),
        Output("in-view", "data"),
        Input("tick", "n_intervals"),
        State("in-view", "data"),
    )
    app.clientside_callback(
        ClientsideFunction("monitor", "showAllSteps"), Input("all-steps", "n_clicks"), prevent_initial_call=True
    )
    app.clientside_callback(ClientsideFunction("monitor", "answered"), Input("answered", "data"))
    for store in ("markup-of-runs", "markup-of-charts"):
        app.clientside_callback(ClientsideFunction("markup", "show"), Input(store, "data"), prevent_initial_call=True)
    app.clientside_callback(
        ClientsideFunction("monitor", "theme"), Output("theme-now", "data"), Input("theme", "value")
    )

    @app.callback(
        Output("hidden", "data"),
        Input("show-asked", "data"),
        Input("show-all", "n_clicks"),
        Input("hide-all", "n_clicks"),
        State("hidden", "data"),
        State("search", "value"),
        prevent_initial_call=True,
    )
    def hide_or_show(asked: Any, _: int | None, __: int | None, hidden: list[str], search: str | None) -> list[str]:
        if ctx.triggered_id == "show-asked":
            name = asked[0]
            return sorted(set(hidden) ^ {name})
        with library.lock:
            found = {row.name for row in arranged(overview(library, View()), search or "", "name", False)}
        return sorted(set(hidden) - found if ctx.triggered_id == "show-all" else set(hidden) | found)

    @app.callback(Output("sort", "data"), Input("sort-asked", "data"), State("sort", "data"), prevent_initial_call=True)
    def sort_by(asked: list[Any], sort: list[Any]) -> list[Any]:
        column = asked[0]
        return [column, not sort[1] if sort[0] == column else column != "name"]


def _draw_charts(app: Dash, library: Library) -> None:
    @app.callback(
        Output(_CHART, "figure"),
        Output({"type": "title", "name": ALL}, "children"),
        Output({"type": "caption", "name": ALL}, "children"),
        Output({"type": "figure", "name": ALL}, "aria-label"),
        Output({"type": "section", "name": ALL}, "className"),
        Output("markup-of-charts", "data"),
        Output("drawn", "data"),
        Input("revision", "data"),
        Input("hidden", "data"),
        Input("split", "value"),
        Input("strategy", "value"),
        Input("focus", "value"),
        Input("unit", "value"),
        Input("smoothing", "value"),
        Input("log-x", "value"),
        Input("log-y", "value"),
        Input("zoom", "data"),
        Input("theme-now", "data"),
        Input("in-view", "data"),
        State("drawn", "data"),
        prevent_initial_call=True,
    )
    def draw(
        revision: int | None,
        hidden: list[str],
        split: Any,
        strategy: str,
        focus: str | None,
        unit: Any,
        smoothing: int,
        log_x: list[str],
        log_y: list[str],
        zoom: list[int | float] | None,
        theme: Any,
        in_view: list[str],
        drawn_as: dict[str, str],
    ) -> Any:
        if revision is None or theme is None:
            return _nothing()
        asked = json.dumps((revision, hidden, split, strategy, focus, unit, smoothing, log_x, log_y, zoom, theme))
        with library.lock:
            num_shown = len(library.runs.keys() - set(hidden))
            # A browser needs a sixth of a second for a chart of a hundred runs: those out of sight can wait.
            wanted = [
                name for name in drawn.NAMES if (name in in_view or num_shown <= MANY) and drawn_as.get(name) != asked
            ]
            if not wanted:
                return _nothing()
            shown = {name: library.places[name] for name in library.runs if name not in hidden}
            runs = [library.runs[name] for name in shown]
            view = View(
                runs=tuple(shown),
                colours=tuple(shown.values()),
                focus=focus if focus in shown else next(iter(shown), None),
                split=split,
                strategy=strategy,
                unit=unit,
                smoothing=smoothing,
                log_x=bool(log_x),
                log_y=bool(log_y),
                x_range=(float(zoom[0]), float(zoom[1])) if zoom else None,
                theme=theme,
            )
            found = library.of_sound(runs, functools.partial(drawn.charts, view=view))
            configs = _configs(runs)
        return (
            [chart.figure if chart.name in wanted else no_update for chart in found],
            [chart.title for chart in found],
            [chart.caption if not chart.is_empty else "No run shown has such records yet." for chart in found],
            [chart.alt for chart in found],
            ["chart is-empty" if chart.is_empty else "chart" for chart in found],
            {f"values-{chart.name}": table(chart.header, chart.rows) for chart in found} | {"configs": configs},
            drawn_as | dict.fromkeys(wanted, asked),
        )


def _nothing() -> tuple[Any, ...]:
    return (*([no_update] * len(drawn.NAMES) for _ in range(5)), no_update, no_update)


def _notice(library: Library, rows: Sequence[Row]) -> str:
    sentences = []
    if library.has_stopped:
        sentences.append("The monitor itself has stopped: nothing new will appear; start it anew.")
    elif library.progress:
        return library.progress
    if not rows:
        roots = legible(", ".join(map(str, library.roots)))
        sentences.append(
            f"No run below {roots} yet: a run is a folder with bound.jsonl. One that starts will appear here."
        )
    else:
        sentences.append(f"{len(rows)} run{'s' if len(rows) > 1 else ''}.")
    with_notes = [row.name for row in rows if row.notes]
    if with_notes:
        names = ", ".join(with_notes[:5])
        sentences.append(f"There is something to know of the files of {names}: see what the badges say.")
    listed = {row.name for row in rows}
    sentences += [f"{name} {told}." for name, told in library.troubles.items() if name not in listed]
    return " ".join(sentences)


def _configs(runs: Sequence[Any]) -> Node:
    if not 2 <= len(runs) <= MAX_CONFIGS:
        return node("p", f"Show 2 to {MAX_CONFIGS} runs to compare their config.yaml; {len(runs)} are shown.")
    header, rows = differences(runs)
    if not rows:
        return node("p", "The runs shown have the same options.")
    region = {"class_": "scroll", "tabindex": "0", "role": "region", "aria_label": "Options that differ"}
    return node("div", [node("div", [table(header, rows)], **region)], class_="config")


def _scrolling(label: str) -> dict[str, Any]:
    """Properties of a part that scrolls by itself, by keyboard too."""
    return {"className": "scroll", "tabIndex": 0, "role": "region", "aria-label": label}
