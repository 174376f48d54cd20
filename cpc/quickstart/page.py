"""The page report.html with the results of a quickstart."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from cpc.pages.chart import Chart, number
from cpc.pages.charts import step_chart, training_chart
from cpc.pages.page import sections, write_sections
from cpc.quickstart.recipe import Recipe

FACTS = {  # texts for keys that every report has
    "latent_dim": "latents of width {}",
    "context_dim": "contexts of width {}",
    "device": "computed on {}",
    "num_threads": "{} threads",
}
RUN_FACTS = {"num_train_steps": "{} training steps", "precision": "trained in {}"}
CEILING = """<p><b>Ceiling.</b> With N candidates, including the positive, <i>log N - L</i> never exceeds <i>log N</i>,
however large the information is. Near the ceiling a curve shows the number of candidates, not the information.</p>
"""
ACCURACY = """<p><b>Accuracy</b> is the share of rows in which no negative scores higher than the positive. A positive
that ties with m negatives counts 1/(1 + m), so that a collapsed encoder has exactly the accuracy of chance, 1/N.</p>
"""


class Chapter(NamedTuple):
    """The part of the page about one run.

    Attributes:
        records: records of bound.jsonl; the charts leave out records of split `train`.
        figures: figures that follow the charts of the bound.
    """

    records: list[dict[str, Any]]
    figures: Sequence[Chart]


def write_page(path: Path, recipe: Recipe, report: dict[str, Any], chapters: Mapping[str, Chapter]) -> None:
    """Write a quickstart's page.

    Args:
        path: the HTML file.
        recipe: the recipe, which holds the text of the page.
        report: content of report.json.
        chapters: chapters by the name of the run. With several chapters, the titles of the figures begin with the name.

    Raises:
        ValueError: if plotly is not installed.
    """
    write_sections(path, _parts(recipe, report, chapters), recipe.how_to_read)


def _parts(recipe: Recipe, report: dict[str, Any], chapters: Mapping[str, Chapter]) -> Iterator[str]:
    yield recipe.heading
    seconds = [f"{stage} {number(value, 0)} s" for stage, value in report.get("seconds", {}).items()]
    yield _line(_facts({**recipe.facts, **FACTS}, report))
    for name, run in report["runs"].items():
        yield _line(f"{name.capitalize()}: {_facts({**recipe.run_facts, **RUN_FACTS}, run)}.")
    yield _line("Time: " + ", ".join(seconds) if seconds else "")
    yield _line(report.get("recipe_chosen_on", ""))
    figures = [recipe.comparison(report)]
    for name, chapter in chapters.items():
        prefix = f"{name.capitalize()}: " if len(chapters) > 1 else ""
        for figure in (*bound_charts(chapter.records), *chapter.figures):
            figures.append(figure._replace(title=prefix + figure.title, alt=prefix + figure.alt))
    yield from sections(figures)


def _facts(texts: Mapping[str, str], values: Mapping[str, Any]) -> str:
    """Return the texts of all keys that have a value."""
    return ", ".join(text.format(values[key]) for key, text in texts.items() if values.get(key) is not None)


def _line(text: str) -> str:
    return f'<p class="facts">{escape(text)}</p>\n' if text else ""


def bound_charts(records: list[dict[str, Any]]) -> list[Chart]:
    """Return a chart per strategy over training, the training strategy first, and a chart of the final bounds."""
    by_strategy: dict[str, list[dict[str, Any]]] = {}
    for record in sorted(records, key=lambda record: record["step"]):
        if record["split"] != "train":
            by_strategy.setdefault(record["strategy"], []).append(record)
    if not by_strategy:
        return []
    return [*map(training_chart, by_strategy.values()), step_chart([run[-1] for run in by_strategy.values()])]
