"""The page report.html with the results of a quickstart."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from cpc.pages.chart import Chart, number
from cpc.pages.charts import training_chart
from cpc.pages.page import sections, write_sections
from cpc.quickstart.recipe import Recipe

FACTS = {  # texts for keys that every report has
    "latent_dim": "latents of width {}",
    "context_dim": "contexts of width {}",
    "device": "computed on {}",
    "num_threads": "{} threads",
}
RUN_FACTS = {"num_train_steps": "{} training steps", "precision": "trained in {}"}


def write_page(path: Path, recipe: Recipe, report: dict[str, Any], run_figures: Mapping[str, Sequence[Chart]]) -> None:
    """Write a quickstart's page.

    Args:
        path: the HTML file.
        recipe: the recipe, which holds the text of the page.
        report: content of report.json.
        run_figures: figures by the name of the run. With several runs, the titles of the figures begin with the name.

    Raises:
        ValueError: if plotly is not installed.
    """
    write_sections(path, _parts(recipe, report, run_figures), recipe.how_to_read)


def _parts(recipe: Recipe, report: dict[str, Any], run_figures: Mapping[str, Sequence[Chart]]) -> Iterator[str]:
    seconds = [f"{stage} {number(value, 0)} s" for stage, value in report.get("seconds", {}).items()]
    lines = [_facts({**recipe.facts, **FACTS}, report)]
    for name, run in report["runs"].items():
        lines.append(f"{name.capitalize()}: {_facts(RUN_FACTS, run)}.")
    lines += ["Time: " + ", ".join(seconds) if seconds else "", report.get("recipe_chosen_on", "")]
    figures: list[Chart] = [recipe.comparison(report)]
    for name, own in run_figures.items():
        prefix = f"{name.capitalize()}: " if len(run_figures) > 1 else ""
        figures += [figure._replace(title=prefix + figure.title, alt=prefix + figure.alt) for figure in own]
    yield recipe.heading
    yield from (f'<p class="facts">{escape(line)}</p>\n' for line in lines if line)
    yield from sections(figures)


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
