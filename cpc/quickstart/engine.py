"""The quickstart: make a corpus, pretrain for a given time, measure the bound, probe, write a report."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from cpc.data.device import describe_device, find_device
from cpc.data.store.atomic import write_json
from cpc.data.store.records import read_records
from cpc.evaluation import evaluate
from cpc.pages.chart import Chart
from cpc.pretraining.command import parse, pretrain
from cpc.probes.record import add_seconds
from cpc.probes.store import Extraction
from cpc.quickstart.page import Chapter, write_page
from cpc.quickstart.recipe import Config, ProbeResults, Recipe, Run, Study
from cpc.quickstart.time_budget import Precision, StepTimes, measure_step_times, require_extras, require_new


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
    require_new(out, recipe.studies)
    require_extras(recipe.extras)
    out.mkdir(parents=True, exist_ok=True)
    seconds: dict[str, float] = {}
    stage = partial(add_seconds, seconds)
    with stage(recipe.making):
        sources, report = recipe.make(corpus, seed)
    report = report | {"runs": {}, "device": describe_device(device), "num_threads": torch.get_num_threads()}
    chapters = {}
    for name, study in recipe.studies.items():
        with stage("pretrain"):
            step_times, num_steps = _pretrain(name, study, out / name, sources[name], seed, steps, device)
        with stage("bound"):
            measured = evaluate(out / name, sources[name], device=device, **study.evaluation)
        extraction = Extraction(device=device, precision=step_times.precision.probes)
        run = Run(out / name, sources[name], measured, extraction, seed)
        probed = ProbeResults({}, {})
        figures: Sequence[Chart] = ()
        if study.probe is not None:
            with stage("probes"):
                probed = study.probe(run)
        if study.figures is not None:
            with stage("pictures"):
                figures = study.figures(run)
        chapters[name] = Chapter(read_records(run.folder / "bound.jsonl"), figures)
        report |= probed.shared
        report["runs"][name] = _record(probed, measured, num_steps, step_times)
    report["seconds"] = dict(seconds)
    write_json(report, out / "report.json")
    with stage("page"):
        write_page(out / "report.html", recipe, report, chapters)
    total = round(sum(seconds.values()), 1)
    report["seconds"] = seconds | {"total": total}
    write_json(report, out / "report.json")
    print(f"{total:.0f} seconds; the report is {out / 'report.html'} and {out / 'report.json'}")
    return report


def _pretrain(
    name: str, study: Study, folder: Path, source: Path, seed: int, steps: int | None, device: str
) -> tuple[StepTimes, int]:
    """Time the training steps, then train for `steps` or for as many as fit in the seconds of the study."""
    accelerator, _, index = device.partition(":")

    def config(precision: Precision, num_steps: int) -> Config:
        return study.config(source, seed, precision) | {
            "seed_everything": seed,
            "run_dir": str(folder),
            "trainer": {
                "max_steps": num_steps,
                "precision": precision.trainer,
                "accelerator": accelerator,
                "devices": [int(index)] if index else 1,
                "gradient_clip_val": 1.0,
            },
        }

    step_times = measure_step_times(
        lambda precision: parse(config(precision, 1)).model.model, study.noise(), study.precisions, device
    )
    num_steps = steps or step_times.num_steps(study.seconds, study.most_steps)
    print(f"pretraining on {name}: {num_steps} steps in {step_times}", flush=True)
    pretrain(config(step_times.precision, num_steps))
    return step_times, num_steps


def _record(probed: ProbeResults, measured: dict[str, Any], num_steps: int, step_times: StepTimes) -> dict[str, Any]:
    """Return a run's record in report.json, with the bound for the strategy of training."""
    trained_with = measured["bounds"][0]
    return probed.own | {
        "num_train_steps": num_steps,
        **step_times.record(),
        "steps": trained_with["steps"],
        "directions": trained_with["directions"],
        "mi_bound_nats": trained_with["mi_bound_nats"],
        "mi_ceiling_nats": trained_with["mi_ceiling_nats"],
        "negatives": trained_with["strategy"],
        "reading": trained_with["reading"],
        "bounds": measured["bounds"],
    }
