"""The page of `cpc monitor`: Dash components around the charts, and the callbacks that keep them up to date.

Nothing leaves the machine: Dash serves its own JavaScript, and the browser is told to fetch from nowhere else.
"""

import functools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dash import ALL, ClientsideFunction, Dash, Input, Output, State, ctx, dcc, html, no_update

from cpc.monitor import charts as drawn
from cpc.monitor.figure import GRAPH_CONFIG, RUN_COLOURS
from cpc.monitor.kinds import BOUND
from cpc.monitor.legible import legible
from cpc.monitor.library import Library
from cpc.monitor.overview import COLUMNS, Row, arranged, differences, overview
from cpc.monitor.view import AS_TRAINED, View

TICK_SECONDS = 1.0
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
    _keep_runs_up_to_date(app, library)
    _let_the_reader_choose(app, library)
    _draw_charts(app, library)
    return app


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
            dcc.Store(id="theme-now"),
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
                role="img",
            ),
            html.Details(
                [
                    html.Summary("values"),
                    # Stays when its table is drawn anew, and with it how far the reader has scrolled.
                    html.Div(id=part("values"), **_scrolling(f"Values of the chart {name}")),
                ],
                open=name == "bound",
            ),
        ],
        id=part("section"),
        className="chart is-empty",
    )


def _keep_runs_up_to_date(app: Dash, library: Library) -> None:
    @app.callback(
        Output("runs", "children"),
        Output("reasons", "children"),
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
                return (*(no_update,) * 7, time.time())
            rows = overview(library, View(unit="bits" if unit == "bits" else "nats"))
            strategies = sorted({t.key.names[1] for run in library.runs.values() for t in run.tables(BOUND)})
            shown = [row.name for row in rows if row.name not in hidden]
            return (
                _run_table(arranged(rows, search or "", *sort), hidden, sort),
                _reasons(rows),
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
        ClientsideFunction("monitor", "showAllSteps"), Input("all-steps", "n_clicks"), prevent_initial_call=True
    )
    app.clientside_callback(ClientsideFunction("monitor", "answered"), Input("answered", "data"))
    app.clientside_callback(
        ClientsideFunction("monitor", "theme"), Output("theme-now", "data"), Input("theme", "value")
    )

    @app.callback(
        Output("hidden", "data"),
        Input({"type": "show", "run": ALL}, "n_clicks"),
        Input("show-all", "n_clicks"),
        Input("hide-all", "n_clicks"),
        State("hidden", "data"),
        State("search", "value"),
        prevent_initial_call=True,
    )
    def hide_or_show(
        _: list[int | None], __: int | None, ___: int | None, hidden: list[str], search: str | None
    ) -> Any:
        if not any(each["value"] for each in ctx.triggered):
            return no_update  # buttons that have just been drawn
        if isinstance(ctx.triggered_id, dict):
            return sorted(set(hidden) ^ {ctx.triggered_id["run"]})
        with library.lock:
            found = {row.name for row in arranged(overview(library, View()), search or "", "name", False)}
        return sorted(set(hidden) - found if ctx.triggered_id == "show-all" else set(hidden) | found)

    @app.callback(
        Output("sort", "data"),
        Input({"type": "sort", "column": ALL}, "n_clicks"),
        State("sort", "data"),
        prevent_initial_call=True,
    )
    def sort_by(_: list[int | None], sort: list[Any]) -> Any:
        if not any(each["value"] for each in ctx.triggered) or not isinstance(ctx.triggered_id, dict):
            return no_update
        column = ctx.triggered_id["column"]
        return [column, not sort[1] if sort[0] == column else column != "name"]


def _draw_charts(app: Dash, library: Library) -> None:
    @app.callback(
        Output(_CHART, "figure"),
        Output({"type": "title", "name": ALL}, "children"),
        Output({"type": "caption", "name": ALL}, "children"),
        Output({"type": "figure", "name": ALL}, "aria-label"),
        Output({"type": "values", "name": ALL}, "children"),
        Output({"type": "section", "name": ALL}, "className"),
        Output("configs", "children"),
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
    ) -> Any:
        if revision is None or theme is None:
            return _nothing()
        with library.lock:
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
            [chart.figure for chart in found],
            [chart.title for chart in found],
            [chart.caption if not chart.is_empty else "No run shown has such records yet." for chart in found],
            [chart.alt for chart in found],
            [_table(chart.header, chart.rows) for chart in found],
            ["chart is-empty" if chart.is_empty else "chart" for chart in found],
            configs,
        )


def _nothing() -> tuple[Any, ...]:
    return (*([no_update] * len(drawn.NAMES) for _ in range(6)), no_update)


def _run_table(rows: Sequence[Row], hidden: Sequence[str], sort: Sequence[Any]) -> html.Table:
    def heading(column: str, words: str) -> html.Th:
        is_sorted = sort[0] == column
        arrow = ("", " \u2191", " \u2193")[is_sorted * (1 + bool(sort[1]))]
        order = {"aria-sort": ("none", "ascending", "descending")[is_sorted * (1 + bool(sort[1]))]}
        button = html.Button(words + arrow, id={"type": "sort", "column": column})
        return html.Th(button, scope="col", className="text" if column == "name" else "", **order)

    def row_of(row: Row) -> html.Tr:
        is_shown = row.name not in hidden
        show = html.Button(
            "\u25cf" if is_shown else "\u25cb",
            id={"type": "show", "run": row.name},
            className="show",
            role="checkbox",
            style={"color": RUN_COLOURS[row.colour % len(RUN_COLOURS)]},
            **{"aria-checked": str(is_shown).lower(), "aria-label": f"show {row.name}"},
        )
        marks = [html.Span(each.name, className=f"badge {each.name}", title=each.reason) for each in row.badges]
        cells = [html.Td(row.words(column), className=column) for column in list(COLUMNS)[1:]]
        return html.Tr([html.Td(show), html.Th(row.name, scope="row"), html.Td(marks, className="text"), *cells])

    headings = [heading(column, words) for column, words in COLUMNS.items()]
    head = [html.Th("show", scope="col"), headings[0], html.Th("badges", scope="col", className="text"), *headings[1:]]
    return html.Table([html.Thead(html.Tr(head)), html.Tbody([row_of(row) for row in rows])])


def _reasons(rows: Sequence[Row]) -> Any:
    sentences = [html.Li([html.B(row.name), f": {sentence}"]) for row in rows for sentence in row.sentences]
    return html.Ul(sentences) if sentences else html.P("No run has any.")


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


def _configs(runs: Sequence[Any]) -> Any:
    if not 2 <= len(runs) <= MAX_CONFIGS:
        return html.P(f"Show 2 to {MAX_CONFIGS} runs to compare their config.yaml; {len(runs)} are shown.")
    header, rows = differences(runs)
    if not rows:
        return html.P("The runs shown have the same options.")
    return html.Div(html.Div(_table(header, rows), **_scrolling("Options that differ")), className="config")


def _scrolling(label: str) -> dict[str, Any]:
    """Properties of a part that scrolls by itself, by keyboard too."""
    return {"className": "scroll", "tabIndex": 0, "role": "region", "aria-label": label}


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> html.Table:
    head = html.Thead(html.Tr([html.Th(cell, scope="col") for cell in header]))
    body = [html.Tr([html.Th(first, scope="row"), *(html.Td(cell) for cell in rest)]) for first, *rest in rows]
    return html.Table([head, html.Tbody(body)])
