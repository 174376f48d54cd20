"""report.html: the quickstart's results as one page."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from cpc.pages.charts import Chart, number, step_chart, training_chart
from cpc.pages.page import Picture, sections, write_sections
from cpc.quickstart.recipe import Recipe

FACTS = {  # keys of every report in words
    "latent_dim": "latents of width {}",
    "context_dim": "contexts of width {}",
    "num_threads": "{} threads",
}
RUN_FACTS = {"num_train_steps": "{} training steps", "precision": "trained in {}"}
CEILING = """<p><b>Ceiling.</b> With N candidates, the positive included, <i>log N - L</i> never exceeds <i>log N</i>,
however much there is to know. Near the ceiling a curve says how many candidates there were rather than how much is
predicted.</p>
"""
ACCURACY = """<p><b>Accuracy</b> is the share of rows in which no negative scores higher than the positive. Ties share:
a positive level with m negatives counts 1/(1 + m), so that a collapsed encoder scores exactly chance, 1/N.</p>
"""


class Chapter(NamedTuple):
    """A run on the page.

    Attributes:
        records: lines of bound.jsonl; those of split `train` are left out.
        figures: what it shows besides.
    """

    records: list[dict[str, Any]]
    figures: Sequence[Chart | Picture]


def write_page(path: Path, recipe: Recipe, report: dict[str, Any], chapters: Mapping[str, Chapter]) -> None:
    """Write a quickstart's page.

    Args:
        path: the HTML file.
        recipe: its words.
        report: as in report.json.
        chapters: by the name of the run; with several, charts are titled by it.

    Raises:
        ValueError: if plotly is not installed.
    """
    write_sections(path, _parts(recipe, report, chapters), recipe.reading)


def _parts(recipe: Recipe, report: dict[str, Any], chapters: Mapping[str, Chapter]) -> Iterator[str]:
    yield recipe.heading
    seconds = [f"{stage} {number(value, 0)} s" for stage, value in report.get("seconds", {}).items()]
    yield _line(_facts({**recipe.facts, **FACTS}, report))
    for name, run in report["runs"].items():
        yield _line(f"{name.capitalize()}: {_facts({**recipe.run_facts, **RUN_FACTS}, run)}.")
    yield _line("Time: " + ", ".join(seconds) if seconds else "")
    yield _line(report.get("recipe_chosen_on", ""))
    figures: list[Chart | Picture] = [recipe.comparison(report)]
    for name, chapter in chapters.items():
        prefix = f"{name.capitalize()}: " if len(chapters) > 1 else ""
        for figure in (*bound_charts(chapter.records), *chapter.figures):
            figures.append(figure._replace(title=prefix + figure.title, alt=prefix + figure.alt))
    yield from sections(figures)


def _facts(words: Mapping[str, str], values: Mapping[str, Any]) -> str:
    """Those that are known, in words."""
    found = [form.format(values[key]) for key, form in words.items() if values.get(key) is not None]
    return ", ".join(found)


def _line(words: str) -> str:
    return f'<p class="facts">{escape(words)}</p>\n' if words else ""


def bound_charts(records: list[dict[str, Any]]) -> list[Chart]:
    """A chart per strategy over training, that of training first, and one of where they ended."""
    by_strategy: dict[str, list[dict[str, Any]]] = {}
    for record in sorted(records, key=lambda record: record["step"]):
        if record["split"] != "train":
            by_strategy.setdefault(record["strategy"], []).append(record)
    if not by_strategy:
        return []
    return [*map(training_chart, by_strategy.values()), step_chart([run[-1] for run in by_strategy.values()])]
