"""The quickstart: make a corpus, pretrain for a given time, measure the bound, probe, write a report."""

import importlib
from functools import partial
from pathlib import Path
from typing import Any

import torch

from cpc.config.extras import install_hint
from cpc.data.device import describe_device, find_device
from cpc.data.store.atomic import write_json
from cpc.data.store.records import read_records
from cpc.evaluation import evaluate
from cpc.pages.chart import Chart
from cpc.pretraining.command import parse
from cpc.pretraining.pretrain import pretrain
from cpc.probes import report as probes
from cpc.probes.record import add_seconds
from cpc.probes.store import Extraction
from cpc.quickstart.page import bound_charts, write_page
from cpc.quickstart.recipe import Config, Recipe, Run, Study
from cpc.quickstart.time_budget import Precision, StepTimes, measure_step_times


def quickstart(
    recipe: Recipe, out: Path, corpus: Path, *, seed: int = 0, steps: int | None = None, device: str = "auto"
) -> dict[str, Any]:
    """Run all stages; write `report.json`, `report.html` and a run for each study of the recipe into `out`.

    Args:
        recipe: corpus, models and probes.
        out: a new folder.
        corpus: folder of the corpus; made if it does not exist.
        seed: seed of the corpus, the models and the batches.
        steps: optimiser steps of each model; None: as many as this machine runs in the seconds of the study.
        device: auto (the GPU if there is one), cpu, cuda or cuda:N.

    Returns:
        The content of report.json: accuracies in percent by task and representation, with 95 % intervals under
        `TASK_interval`; the bound and the step times of each study, under `runs`; and the seconds of each stage.

    Raises:
        ValueError: if `out` already holds a quickstart, an extra is not installed, or the device cannot be used.
    """
    device = find_device(device)
    _require_new(out, recipe)
    _require_extras(recipe)
    out.mkdir(parents=True, exist_ok=True)
    seconds: dict[str, float] = {}
    stage = partial(add_seconds, seconds)
    with stage(recipe.making):
        sources, report = recipe.make(corpus, seed)
    report = report | {"runs": {}, "device": describe_device(device), "num_threads": torch.get_num_threads()}
    run_figures: dict[str, list[Chart]] = {}
    for name, study in recipe.studies.items():
        run = Run(out / name, sources[name], device, seed)
        own: dict[str, Any] = {}
        with stage("pretrain"):
            step_times, num_steps = _pretrain(name, study, run, steps)
        with stage("bound"):
            bounds = evaluate(run.folder, run.source, device=device, **study.evaluation)["bounds"]
        if study.tasks:
            with stage("probes"):
                shared, own = _probe(recipe, study, run, bounds, step_times.precision)
            report |= shared
        run_figures[name] = [*bound_charts(read_records(run.folder / "bound.jsonl"))]
        if study.figures is not None:
            with stage("pictures"):
                run_figures[name] += study.figures(run)
        trained_with = {key: bounds[0][key] for key in ("steps", "directions", "mi_bound_nats", "mi_ceiling_nats")}
        trained_with |= {"negatives": bounds[0]["strategy"], "reading": bounds[0]["reading"], "bounds": bounds}
        report["runs"][name] = own | {"num_train_steps": num_steps, **step_times.record(), **trained_with}
    report["seconds"] = dict(seconds)
    write_json(report, out / "report.json")
    with stage("page"):
        write_page(out / "report.html", recipe, report, run_figures)
    total = round(sum(seconds.values()), 1)
    report["seconds"] = seconds | {"total": total}
    write_json(report, out / "report.json")
    print(f"{total:.0f} seconds; the report is {out / 'report.html'} and {out / 'report.json'}")
    return report


def _require_new(out: Path, recipe: Recipe) -> None:
    if (out / "report.json").exists():
        raise ValueError(f"{out} already holds a quickstart: name another folder with --out")
    unfinished = [str(out / name) for name in recipe.studies if (out / name).exists()]
    if unfinished:
        raise ValueError(
            f"{out} holds an unfinished quickstart, which cannot be continued: remove {', '.join(unfinished)} to "
            "begin again, or name another folder with --out"
        )


def _require_extras(recipe: Recipe) -> None:
    for module, extra in recipe.extras.items():
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ValueError(
                f"the quickstart needs {module.partition('.')[0]}: {install_hint(extra)} ({error})"
            ) from error


def _pretrain(name: str, study: Study, run: Run, steps: int | None) -> tuple[StepTimes, int]:
    """Time the training steps, then train for `steps` or for as many as fit in the seconds of the study."""
    accelerator, _, index = run.device.partition(":")

    def config(precision: Precision, num_steps: int) -> Config:
        trainer = {"max_steps": num_steps, "precision": precision.trainer, "gradient_clip_val": 1.0}
        trainer |= {"accelerator": accelerator, "devices": [int(index)] if index else 1}
        own = {"seed_everything": run.seed, "run_dir": str(run.folder), "trainer": trainer}
        return study.config(run.source, run.seed, precision) | own

    step_times = measure_step_times(
        lambda precision: parse(config(precision, 1)).model.model, study.noise(), study.precisions, run.device
    )
    num_steps = steps or step_times.num_steps(study.seconds, study.most_steps)
    print(f"pretraining on {name}: {num_steps} steps in {step_times}", flush=True)
    pretrain(config(step_times.precision, num_steps))
    return step_times, num_steps


def _probe(
    recipe: Recipe, study: Study, run: Run, bounds: list[dict[str, Any]], precision: Precision
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the entries of report.json for every task of a study, and further entries of the run's record."""
    extraction = Extraction(device=run.device, precision=precision.probes)
    tasks = tuple(study.tasks.values())
    probed = probes.probe(run.folder, run.source, tasks, held_out=bounds, extraction=extraction, **study.probe)
    shared: dict[str, Any] = {}
    for name, task in study.tasks.items():
        results = probed["tasks"][task]["results"]
        shown = {key: results[key] for key in recipe.representations}
        shared[name] = {key: round(result["accuracy_percent"], 2) for key, result in shown.items()}
        shared[f"{name}_interval"] = {key: result["accuracy_interval_percent"] for key, result in shown.items()}
        shared[f"{name}_num_steps"] = {"supervised": results["supervised"]["num_network_steps"]}
    return shared, study.record(probed)
