"""The quickstart: make a corpus, pretrain, measure the bound, probe, write a report."""

from functools import partial
from pathlib import Path
from typing import Any

import torch

from cpc.config.extras import import_extra
from cpc.data.store.atomic import write_json
from cpc.data.tensors import describe_device, find_device
from cpc.evaluation import evaluate
from cpc.pages.report import Report
from cpc.pretraining.pretrain import pretrain
from cpc.pretraining.run import Run as TrainedRun
from cpc.probes import report as probes
from cpc.probes.record import add_seconds
from cpc.probes.store import Extraction
from cpc.quickstart.page import write_page
from cpc.quickstart.recipe import Recipe, Run, Study


def quickstart(
    recipe: Recipe, out: Path, corpus: Path, *, seed: int = 0, steps: int | None = None, device: str = "auto"
) -> dict[str, Any]:
    """Run all stages; write `report.json`, `report.html` and a run for each study of the recipe into `out`.

    Returns:
        The content of report.json: accuracies in percent by task and representation, with 95 % intervals under
        `TASK_interval`; the bound of each study, under `runs`; and the seconds of each stage.

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
    shown: dict[str, TrainedRun | Report] = {}
    for name, study in recipe.studies.items():
        run = Run(out / name, sources[name], device, seed)
        with stage("pretrain"):
            trained = _pretrain(name, study, run, steps or study.num_steps)
        with stage("bound"):
            print(evaluation := evaluate(run.folder, run.source, device=device, **study.evaluation))
            bounds = evaluation["bounds"]
        if study.tasks:
            with stage("probes"):
                print(probed := _probe(study, run, bounds))
            report |= _accuracies(recipe, study, probed)
            shown[f"{name.capitalize()}: accuracy of linear probes"] = probed
        shown[f"{name.capitalize()}: bound on held-out batches"] = evaluation
        shown[f"{name.capitalize()}: bound over training"] = TrainedRun(run.folder)
        trained_with = {key: bounds[0][key] for key in ("steps", "directions", "mi_bound_nats", "mi_ceiling_nats")}
        trained_with |= {"negatives": bounds[0]["strategy"], "reading": bounds[0]["reading"], "bounds": bounds}
        trained_with |= {"perplexity": bounds[0].get("perplexity")}  # None: not of text
        report["runs"][name] = trained | trained_with
    report["seconds"] = dict(seconds)
    write_json(report, out / "report.json")
    with stage("page"):
        write_page(out / "report.html", recipe, report, shown)
    total = round(sum(seconds.values()), 1)
    report["seconds"] = seconds | {"total": total}
    write_json(report, out / "report.json")
    print(f"{total:.0f} seconds; the report is {out / 'report.html'} and {out / 'report.json'}")
    return report


def _require_new(out: Path, recipe: Recipe) -> None:
    earlier = [str(out / name) for name in ("report.json", *recipe.studies) if (out / name).exists()]
    if earlier:
        raise ValueError(f"{out} already holds a quickstart: remove {', '.join(earlier)}, or name another `out`")


def _require_extras(recipe: Recipe) -> None:
    for module, extra in recipe.extras.items():
        import_extra(module, extra, f"the quickstart needs {module.partition('.')[0]}")


def _pretrain(name: str, study: Study, run: Run, num_steps: int) -> dict[str, Any]:
    """Train for `num_steps`, in bfloat16 on a GPU and in float32 elsewhere; return the steps and the precision."""
    accelerator, _, index = run.device.partition(":")
    precision = "bf16-mixed" if accelerator == "cuda" else "32-true"
    trainer = {"max_steps": num_steps, "precision": precision, "gradient_clip_val": 1.0}
    trainer |= {"accelerator": accelerator, "devices": [int(index)] if index else 1}
    print(f"pretraining on {name}: {num_steps} steps in {precision}", flush=True)
    own = {"seed_everything": run.seed, "run_dir": str(run.folder), "trainer": trainer}
    pretrain(study.config(run.source, run.seed) | own)
    return {"num_train_steps": num_steps, "precision": precision}


def _probe(study: Study, run: Run, bounds: list[dict[str, Any]]) -> Report:
    extraction = Extraction(device=run.device, precision="bfloat16" if run.device.startswith("cuda") else "float32")
    tasks = tuple(study.tasks.values())
    return probes.probe(run.folder, run.source, tasks, held_out=bounds, extraction=extraction, **study.probe)


def _accuracies(recipe: Recipe, study: Study, probed: Report) -> dict[str, Any]:
    """Return the entries of report.json for every task of a study."""
    shared: dict[str, Any] = {}
    for name, task in study.tasks.items():
        results = probed["tasks"][task]["results"]
        shown = {key: results[key] for key in recipe.representations}
        shared[name] = {key: round(result["accuracy_percent"], 2) for key, result in shown.items()}
        shared[f"{name}_interval"] = {key: result["accuracy_interval_percent"] for key, result in shown.items()}
        shared[f"{name}_num_steps"] = {"supervised": results["supervised"]["num_network_steps"]}
    return shared
