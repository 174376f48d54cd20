"""The quickstart: make a corpus, pretrain in the time there is, measure the bound, probe, report."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from cpc.data.store.atomic import write_json
from cpc.data.store.records import read_records
from cpc.evaluation import evaluate
from cpc.pages.charts import Chart
from cpc.pretraining.command import parse, pretrain
from cpc.probes.clock import Clock
from cpc.quickstart.budget import Pace, Precision, measure_pace, require_extras, require_new
from cpc.quickstart.page import Chapter, write_page
from cpc.quickstart.recipe import Config, Findings, Picture, Recipe, Run, Study


def quickstart(recipe: Recipe, out: Path, corpus: Path, *, seed: int = 0, steps: int | None = None) -> dict[str, Any]:
    """Run everything; write `report.json` and `report.html` into `out`, and a run for each of the recipe's studies.

    Args:
        recipe: what is learnt, and how it is probed.
        out: a new folder.
        corpus: folder of the corpus; made if it is not there.
        seed: of corpus, models and batches.
        steps: optimiser steps of each model; None: as many as this machine does in the study's seconds.

    Returns:
        The content of report.json: accuracies by task and representation in percent, under `TASK_interval` their 95 %
        intervals; under `runs` the bound and the pace of each study; seconds per stage.

    Raises:
        ValueError: if `out` already holds a quickstart, or the extras are not installed.
    """
    require_new(out, recipe.studies)
    require_extras(recipe.extras)
    out.mkdir(parents=True, exist_ok=True)
    clock = Clock()
    with clock(recipe.making):
        sources, report = recipe.make(corpus, seed)
    report = report | {"runs": {}, "num_threads": torch.get_num_threads()}
    chapters = {}
    for name, study in recipe.studies.items():
        with clock("pretrain"):
            pace, num_steps = _pretrain(name, study, out / name, sources[name], seed, steps)
        with clock("bound"):
            measured = evaluate(out / name, sources[name], **study.evaluation)
        run = Run(out / name, sources[name], measured, pace.precision, seed)
        found = Findings({}, {})
        figures: Sequence[Chart | Picture] = ()
        if study.probe is not None:
            with clock("probes"):
                found = study.probe(run)
        if study.figures is not None:
            with clock("pictures"):
                figures = study.figures(run)
        chapters[name] = Chapter(read_records(run.folder / "bound.jsonl"), figures)
        report |= found.shared
        report["runs"][name] = _record(found, measured, num_steps, pace)
    report["seconds"] = dict(clock.seconds)
    write_json(report, out / "report.json")
    with clock("page"):
        write_page(out / "report.html", recipe, report, chapters)
    report["seconds"] = clock.seconds | {"total": clock.total}
    write_json(report, out / "report.json")
    print(f"{clock.total:.0f} seconds; {out / 'report.html'} shows it, {out / 'report.json'} holds it")
    return report


def _pretrain(name: str, study: Study, folder: Path, source: Path, seed: int, steps: int | None) -> tuple[Pace, int]:
    """Time a step, then train for as many as there is time for."""

    def config(precision: Precision, num_steps: int) -> Config:
        return study.config(source, seed, precision) | {
            "seed_everything": seed,
            "run_dir": str(folder),
            "trainer": {
                "max_steps": num_steps,
                "precision": precision.trainer,
                "accelerator": "cpu",
                "gradient_clip_val": 1.0,
            },
        }

    pace = measure_pace(lambda precision: parse(config(precision, 1)).model.model, study.noise(), study.precisions)
    num_steps = steps or pace.num_steps(study.seconds, study.most_steps)
    print(f"pretraining on {name}: {num_steps} steps in {pace}", flush=True)
    pretrain(config(pace.precision, num_steps))
    return pace, num_steps


def _record(found: Findings, measured: dict[str, Any], num_steps: int, pace: Pace) -> dict[str, Any]:
    """What the report says of a run; the bound is that of the strategy it was trained with."""
    trained_with = measured["bounds"][0]
    return found.own | {
        "num_train_steps": num_steps,
        **pace.record(),
        "steps": trained_with["steps"],
        "directions": trained_with["directions"],
        "mi_bound_nats": trained_with["mi_bound_nats"],
        "mi_ceiling_nats": trained_with["mi_ceiling_nats"],
        "negatives": trained_with["strategy"],
        "reading": trained_with["reading"],
        "bounds": measured["bounds"],
    }
