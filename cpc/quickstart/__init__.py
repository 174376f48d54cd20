"""Quickstarts: one engine, and a recipe for each corpus. The command line asks here; nothing heavy is imported."""

from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple


class Entry(NamedTuple):
    """A recipe that is not loaded yet.

    Attributes:
        module: holds it, as `RECIPE`.
        words: what the model learns from.
        out: default folder of runs and reports.
        corpus: default folder of the corpus.
    """

    module: str
    words: str
    out: Path
    corpus: Path

    def load(self) -> Any:
        """The `cpc.quickstart.recipe.Recipe`."""
        return import_module(self.module).RECIPE


RECIPES = {
    "audio": Entry(
        "cpc.quickstart.speech", "synthesised speech", Path("runs/quickstart"), Path("data/quickstart_speech")
    ),
    "image": Entry(
        "cpc.quickstart.images",
        "photographs and digits",
        Path("runs/image_quickstart"),
        Path("data/embedded_images"),
    ),
    "text": Entry(
        "cpc.quickstart.prose",
        "prose that Python brings along",
        Path("runs/text_quickstart"),
        Path("data/embedded_prose"),
    ),
}
