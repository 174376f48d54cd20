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


def write_page(path: Path, recipe: Recipe, report: dict[str, Any], shown: Mapping[str, Run | Report]) -> None:
    """Write a quickstart's page: the recipe's text, facts of report.json, and a section for each of `shown` by title.

    A section has a picture and the tables of its values, for screen readers and tests.
    """
    sections = "".join(_section(title, each) for title, each in shown.items())
    facts = "".join(f'<p class="caption">{escape(line)}</p>\n' for line in _facts(recipe, report) if line)
    explained = f"<section><h2>How to read this</h2>\n{''.join(recipe.how_to_read)}</section>"
    write_document(path, "cpc quickstart", f"{recipe.heading}{facts}{sections}{explained}")


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
