"""Quickstarts: one engine for all, and a recipe for each corpus. torch is imported only when a quickstart starts."""

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from cpc.config.argument_rules import Count, Device, Range, Writable, checked


class Entry(NamedTuple):
    """A recipe that is not imported yet.

    Attributes:
        module: module that defines the recipe as `RECIPE`.
        out: default folder of runs and reports.
        corpus: default folder of the corpus.
    """

    module: str
    out: Path
    corpus: Path

    def load(self) -> Any:
        """Import the module and return its `cpc.quickstart.recipe.Recipe`."""
        return import_module(self.module).RECIPE


RECIPES = {
    "audio": Entry("cpc.quickstart.speech", Path("runs/quickstart"), Path("data/quickstart_speech")),
    "image": Entry("cpc.quickstart.images", Path("runs/image_quickstart"), Path("data/embedded_images")),
    "signals": Entry("cpc.quickstart.signals", Path("runs/signals_quickstart"), Path("data/embedded_signals")),
    "text": Entry("cpc.quickstart.prose", Path("runs/text_quickstart"), Path("data/embedded_prose")),
}


@checked
def quickstart(
    *,
    modality: Literal["audio", "image", "signals", "text"] = "audio",
    out: Annotated[Path, Writable(is_folder=True)] | None = None,
    corpus: Path | None = None,
    steps: Count | None = None,
    seed: Annotated[int, Range(0, 2**32 - 1)] = 0,
    device: Device = "auto",
) -> None:
    """Make a corpus, pretrain, measure the bound, probe, and write a report.

    Args:
        modality: the corpus: audio is synthesised speech; image is photographs and digits; signals is recordings of a
            smartwatch; text is prose that ships with Python.
        out: a new folder for runs and report; runs/quickstart if not given, with image_, signals_ or text_ before the
            name.
        corpus: folder of the corpus, made if it does not exist. If not given: data/quickstart_speech,
            data/embedded_images, data/embedded_signals or data/embedded_prose.
        steps: optimiser steps; if not given, chosen by the speed of this machine.
        seed: seed of the model, the batches and the corpus.
        device: auto (the GPU if there is one), cpu, cuda or cuda:N.

    Raises:
        ValueError: the errors of `cpc.quickstart.engine.quickstart`.
    """
    from cpc.quickstart import engine

    recipe = RECIPES[modality]
    place = (out or recipe.out, corpus or recipe.corpus)
    engine.quickstart(recipe.load(), *place, seed=seed, steps=steps, device=device)
