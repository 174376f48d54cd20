"""Quickstarts: one engine for all, and a recipe for each corpus. torch is imported only when a quickstart starts."""

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

from cpc.config.argument_rules import Count, Device, Range, Writable, checked

# The module of each recipe, and its default folders of runs and corpus.
RECIPES = {
    "audio": ("speech", Path("runs/quickstart"), Path("data/quickstart_speech")),
    "image": ("images", Path("runs/image_quickstart"), Path("data/embedded_images")),
    "signals": ("signals", Path("runs/signals_quickstart"), Path("data/embedded_signals")),
    "text": ("prose", Path("runs/text_quickstart"), Path("data/embedded_prose")),
}


def load_recipe(modality: str) -> Any:
    """Import the `cpc.quickstart.recipe.Recipe` of a modality."""
    return import_module(f"cpc.quickstart.{RECIPES[modality][0]}").RECIPE


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
        steps: optimiser steps; those of the recipe if not given.
        seed: seed of the model, the batches and the corpus.
        device: auto (the GPU if there is one), cpu, cuda or cuda:N.
    """
    from cpc.quickstart import engine

    _, runs, data = RECIPES[modality]
    engine.quickstart(load_recipe(modality), out or runs, corpus or data, seed=seed, steps=steps, device=device)
