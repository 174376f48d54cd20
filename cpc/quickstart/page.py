"""The page report.html with the results of a quickstart; it needs neither network nor server."""

import base64
import io
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

from cpc.pages.html import scroll, write_document
from cpc.pages.report import Report, number
from cpc.pretraining.run import Run
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
img { max-width: 100%; background: #ffffff; }
.facts { color: var(--faint); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 0.2rem 1rem 0.2rem 0; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th:first-child { text-align: left; position: sticky; left: 0; background: var(--page); }
@media (max-width: 30rem) { table { font-size: 0.8rem; } th, td { padding-right: 0.5rem; } }
</style>
"""


def write_page(path: Path, recipe: Recipe, report: dict[str, Any], shown: Mapping[str, Run | Report]) -> None:
    """Write a quickstart's page: the recipe's text, facts of report.json, and a section for each of `shown` by title.

    A section has a picture and the tables of its values, for screen readers and tests.
    """
    sections = "".join(_section(title, each) for title, each in shown.items())
    facts = "".join(f'<p class="facts">{escape(line)}</p>\n' for line in _facts(recipe, report) if line)
    explained = f"<section><h2>How to read this</h2>\n{''.join(recipe.how_to_read)}</section>"
    write_document(path, "cpc quickstart", STYLE, "", f"{recipe.heading}{facts}{sections}{explained}")


def _section(title: str, shown: Run | Report) -> str:
    shown.figure().savefig(stream := io.BytesIO(), format="png", dpi=150)
    picture = base64.b64encode(stream.getvalue()).decode()
    return (
        f"<section><h2>{escape(title)}</h2>\n"
        f'<img alt="{escape(title)}; the values are in the tables below" src="data:image/png;base64,{picture}">\n'
        f"{scroll(shown._repr_html_(), title)}\n</section>\n"
    )


def _facts(recipe: Recipe, report: Mapping[str, Any]) -> Iterator[str]:
    yield _filled({**recipe.facts, **FACTS}, report)
    for name, run in report["runs"].items():
        yield f"{name.capitalize()}: {_filled(RUN_FACTS, run)}."
    seconds = ", ".join(f"{stage} {number(value, 0)} s" for stage, value in report["seconds"].items())
    yield f"Time: {seconds}"
    yield report["recipe_chosen_on"]
    yield recipe.caption


def _filled(texts: Mapping[str, str], values: Mapping[str, Any]) -> str:
    """Return the texts of all keys that have a value."""
    return ", ".join(text.format(values[key]) for key, text in texts.items() if values.get(key) is not None)
