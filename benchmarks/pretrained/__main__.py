"""Make a model of `cpc models`: pretrain it, store it in float16, probe it, and write its card.

python -m benchmarks.pretrained NAME [--data DIR] [--out DIR] [--run DIR] [--option=value ...]

DIR of --data has one folder for each corpus: an4, timit_dev, caltech101_small, hapt, ludb. The seed is in the config. A
run that an earlier call finished is not repeated. More options go to `cpc pretrain`. Set OMP_NUM_THREADS=1.
"""

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.ablations import train
from benchmarks.pretrained.recipes import CONFIGS, RECIPES, Figures, Recipe
from cpc.checkpoint import load_pretrained, read_config, save_pretrained
from cpc.data.audio.items import write_items
from cpc.data.store.atomic import write_json
from cpc.data.store.untrusted import read_json
from cpc.interop.share import share, shorten_paths
from cpc.native.allocator import keep_freed_memory
from cpc.native.processor import prepare_processor
from cpc.pages.report import Report
from cpc.pretrained import FOLDER
from cpc.probes.abx.command import abx
from cpc.probes.abx.errors import ABXProtocol
from cpc.probes.report import probe


def make(name: str, data: Path, run: Path, out: Path, options: list[str]) -> Path:
    """Make one model, and return its folder below `out`."""
    recipe = RECIPES[name]
    corpus = recipe.source(data, run)
    config = CONFIGS / recipe.config
    train(run, ["--config", str(config), f"--data.{recipe.source_option}={corpus}", *recipe.options, *options])
    stored = run / name
    save_pretrained(load_pretrained(run), stored, provenance=read_config(run)["provenance"], dtype=torch.float16)
    measure(recipe, stored, data, run, stored)
    return publish(recipe, stored, out / name)


def measure(recipe: Recipe, model: str | Path, data: Path, work: Path, out: Path) -> dict[str, Report]:
    """Probe a model as its card does; write and return the reports by name."""
    return {name: _measure(name, each, model, data, work, out) for name, each in recipe.figures.items()}


def _measure(name: str, figures: Figures, model: str | Path, data: Path, work: Path, out: Path) -> Report:
    source, report = figures.source(data, work), out / f"{name}.json"
    if figures.alignments is None:
        return probe(model, source, out=report, **figures.options)
    alignments = data / figures.alignments
    result = probe(model, source, out=report, alignments=alignments, **figures.options)
    if figures.has_abx:
        items = source / "phone.item"
        write_items(source, items, alignments=alignments)
        result = abx(model, items, protocol=ABXProtocol(context="any", max_size_group=4), out=report)
    return result


def publish(recipe: Recipe, stored: Path, folder: Path) -> Path:
    """Write the folder that ships: config.json, weights, card and reports, without the paths of this machine."""
    notes = Path(__file__).with_name(f"{folder.name}.md")
    with tempfile.TemporaryDirectory() as temporary:
        new = Path(temporary) / folder.name
        share(stored, license=recipe.license, out=new, data_name=recipe.data_name, notes=notes)
        for name in recipe.figures:
            write_json(_without_confusion(shorten_paths(read_json(stored / f"{name}.json"))), new / f"{name}.json")
        shutil.copytree(new, folder, dirs_exist_ok=True)
    return folder


def _without_confusion(report: dict[str, Any]) -> dict[str, Any]:
    """Return a report without the matrices of 60 x 60 phones, which are nine tenths of its size."""
    for task in report["tasks"].values():
        for result in task["results"].values():
            result["confusion"] = None
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=RECIPES)
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the corpora")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the models; cpc/pretrained if not given")
    parser.add_argument("--run", type=Path, help="run folder; runs/pretrained/NAME if not given")
    where, options = parser.parse_known_args()
    keep_freed_memory()
    prepare_processor()
    run = where.run or Path("runs/pretrained") / where.name
    print(f"{make(where.name, where.data.resolve(), run, where.out, options)} written")


if __name__ == "__main__":
    main()
