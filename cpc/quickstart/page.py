"""report.html: the quickstart's results as one page that needs nothing else, neither network nor server.

Every chart has its values in a table beneath it, for keyboards, screen readers and tests.
"""

from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from cpc.data.store.atomic import write_atomically
from cpc.extras import to_install
from cpc.quickstart.charts import Chart, Table, number, step_chart, training_chart
from cpc.quickstart.recipe import Picture, Recipe

FACTS = {  # keys of every report in words
    "latent_dim": "latents of width {}",
    "context_dim": "contexts of width {}",
    "num_threads": "{} threads",
}
RUN_FACTS = {"num_train_steps": "{} training steps", "precision": "trained in {}"}
CONFIG = {
    "responsive": True,
    "displaylogo": False,
    # By name: what Plotly offers by default includes a button that uploads the chart.
    "modeBarButtons": [["toImage"], ["zoom2d", "resetScale2d"]],
    "showSendToCloud": False,
}
# The policy makes the browser itself refuse whatever would leave the page.
HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:">
<title>{title}</title>
<style>
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
img { max-width: 100%; height: auto; border-radius: 0.3rem; }
.gridlayer path, .zerolinelayer path { stroke: var(--line) !important; }
</style>
"""
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


def write_sections(path: Path, parts: Iterable[str], reading: Iterable[str], title: str = "cpc quickstart") -> None:
    """Write a page of these parts, with Plotly before them and words on how to read them after them.

    Args:
        path: the HTML file.
        parts: HTML; taken once Plotly is known to be there.
        reading: HTML, how to read them.
        title: of the window.

    Raises:
        ValueError: if plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ValueError(f"{path.name} needs plotly: {to_install('dashboard')}") from error
    head = HEAD.replace("{title}", escape(title))
    with write_atomically(path) as new:
        new.write_text(
            f"{head}<script>{get_plotlyjs()}</script></head>\n<body><main>\n{''.join(parts)}"
            f"<section><h2>How to read this</h2>\n{''.join(reading)}</section></main></body></html>\n",
            encoding="utf-8",
        )


def bound_charts(records: list[dict[str, Any]]) -> list[Chart]:
    """A chart per strategy over training, that of training first, and one of where they ended."""
    by_strategy: dict[str, list[dict[str, Any]]] = {}
    for record in sorted(records, key=lambda record: record["step"]):
        if record["split"] != "train":
            by_strategy.setdefault(record["strategy"], []).append(record)
    if not by_strategy:
        return []
    return [*map(training_chart, by_strategy.values()), step_chart([run[-1] for run in by_strategy.values()])]


def sections(figures: Iterable[Chart | Picture]) -> Iterator[str]:
    """A section for each figure; chart 1, which the page is about, shows its table at once."""
    num_charts = 0
    for figure in figures:
        if isinstance(figure, Picture):
            yield _picture(figure)
        else:
            num_charts += 1
            yield _section(figure, f"chart-{num_charts}")


def _picture(picture: Picture) -> str:
    content = b64encode(picture.path.read_bytes()).decode()
    return (
        f"<section><h2>{escape(picture.title)}</h2><p>{escape(picture.caption)}</p>\n"
        f'<img alt="{escape(picture.alt)}" src="data:image/png;base64,{content}"></section>\n'
    )


def _section(chart: Chart, name: str) -> str:
    from plotly.io import to_html

    figure = {"data": chart.traces, "layout": chart.layout}
    plot = to_html(figure, config=CONFIG, include_plotlyjs=False, full_html=False, div_id=name)
    is_open = " open" if name == "chart-1" else ""
    return (
        f"<section><h2>{escape(chart.title)}</h2><p>{escape(chart.caption)}</p>\n"
        f'<div role="img" aria-label="{escape(chart.alt)}">{plot}</div>\n'
        f"<details{is_open}><summary>values</summary>{_table(chart.table, chart.title)}</details></section>\n"
    )


def _table(table: Table, title: str) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in table.header)
    rows = "\n".join(
        f'<tr><th scope="row">{escape(name)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in cells)}</tr>'
        for name, *cells in table.rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="Values: {escape(title)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table></div>"
    )
