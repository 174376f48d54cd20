"""The page report.html with the results of a quickstart; it needs neither network nor server.

Below every chart is a table of its values, for keyboards, screen readers and tests.
"""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from cpc.config.extras import install_hint
from cpc.pages.chart import Chart, number
from cpc.pages.charts import training_chart
from cpc.pages.html import PLOT_CONFIG, folded, render, scroll, table, write_document
from cpc.quickstart.recipe import Recipe

FACTS = {  # texts for keys that every report has
    "latent_dim": "latents of width {}",
    "context_dim": "contexts of width {}",
    "device": "computed on {}",
    "num_threads": "{} threads",
}
RUN_FACTS = {
    "num_train_steps": "{} training steps",
    "precision": "trained in {}",
    "perplexity": "perplexity {0[0]:.1f}",
}


STYLE = """<style>
:root { color-scheme: light dark; --page: #ffffff; --text: #1d2129; --faint: #565d68; --line: #d5d9df; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14171c; --text: #e6e8ec; --faint: #a3abb6; --line: #3a414c; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 1rem; background: var(--page); color: var(--text);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0.5rem 0; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 0.25rem; }
p { margin: 0.4rem 0; }
.facts, caption { color: var(--faint); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 0.2rem 1rem 0.2rem 0; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th:first-child { text-align: left; position: sticky; left: 0; background: var(--page); }
@media (max-width: 30rem) { table { font-size: 0.8rem; } th, td { padding-right: 0.5rem; } }
summary { cursor: pointer; padding: 0.3rem 0; }
.js-plotly-plot g:not(.hovertext) > text { fill: var(--text) !important; }
.xerror { stroke: var(--text) !important; }
.gridlayer path, .zerolinelayer path { stroke: var(--line) !important; }
</style>
"""


def write_page(path: Path, recipe: Recipe, report: dict[str, Any], run_figures: Mapping[str, Sequence[Chart]]) -> None:
    """Write a quickstart's page.

    Args:
        path: the HTML file.
        recipe: the recipe, which holds the text of the page.
        report: content of report.json.
        run_figures: figures by the name of the run. With several runs, the titles of the figures begin with the name.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ValueError(f"{path.name} needs plotly: {install_hint('dashboard')}") from error
    parts = "".join(_parts(recipe, report, run_figures))
    body = f"{parts}<section><h2>How to read this</h2>\n{''.join(recipe.how_to_read)}</section>"
    write_document(path, "cpc quickstart", STYLE, get_plotlyjs(), body)


def _parts(recipe: Recipe, report: dict[str, Any], run_figures: Mapping[str, Sequence[Chart]]) -> Iterator[str]:
    seconds = [f"{stage} {number(value, 0)} s" for stage, value in report.get("seconds", {}).items()]
    lines = [_facts({**recipe.facts, **FACTS}, report)]
    for name, run in report["runs"].items():
        lines.append(f"{name.capitalize()}: {_facts(RUN_FACTS, run)}.")
    lines += ["Time: " + ", ".join(seconds) if seconds else "", report.get("recipe_chosen_on", "")]
    figures = recipe.comparisons(report)
    for name, own in run_figures.items():
        prefix = f"{name.capitalize()}: " if len(run_figures) > 1 else ""
        figures += [figure._replace(title=prefix + figure.title, alt=prefix + figure.alt) for figure in own]
    yield recipe.heading
    yield from (f'<p class="facts">{escape(line)}</p>\n' for line in lines if line)
    for index, figure in enumerate(figures, start=1):
        yield _chart_section(figure, f"chart-{index}")


def _facts(texts: Mapping[str, str], values: Mapping[str, Any]) -> str:
    """Return the texts of all keys that have a value."""
    return ", ".join(text.format(values[key]) for key, text in texts.items() if values.get(key) is not None)


def bound_charts(records: list[dict[str, Any]]) -> list[Chart]:
    """Return a chart of held-out bounds over training for each strategy."""
    by_strategy: dict[str, list[dict[str, Any]]] = {}
    for record in sorted(records, key=lambda record: record["step"]):
        if record["split"] != "train":
            by_strategy.setdefault(record["strategy"], []).append(record)
    return list(map(training_chart, by_strategy.values()))


def _chart_section(chart: Chart, name: str) -> str:
    from plotly.io import to_html

    plot = to_html(chart.figure, config=PLOT_CONFIG, include_plotlyjs=False, full_html=False, div_id=name)
    values = render(scroll(table(*chart.table[:2]), f"Values: {chart.title}"))
    return (
        f"<section><h2>{escape(chart.title)}</h2><p>{escape(chart.caption)}</p>\n"
        f'<div role="img" aria-label="{escape(chart.alt)}">{plot}</div>\n'
        f"{folded('values', values, is_open=name == 'chart-1')}</section>\n"
    )
