"""The quickstart: make a corpus, pretrain, measure the bound, probe, write a report."""

from functools import partial
from pathlib import Path
from typing import Any

import torch

from cpc.checkpoint import load_pretrained
from cpc.config.extras import import_extra
from cpc.data.store.atomic import write_json
from cpc.data.tensors import describe_device, find_device
from cpc.evaluation import evaluate
from cpc.pages.report import Report
from cpc.pretraining.pretrain import pretrain
from cpc.pretraining.run import Run
from cpc.probes import report as probes
from cpc.probes.record import add_seconds
from cpc.probes.store import Extraction
from cpc.quickstart.page import write_page
from cpc.quickstart.recipe import Config, Recipe, Study


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
    if earlier := [str(out / name) for name in ("report.json", *recipe.studies) if (out / name).exists()]:
        raise ValueError(f"{out} already holds a quickstart: remove {', '.join(earlier)}, or name another `out`")
    for module, extra in recipe.extras.items():
        import_extra(module, extra, f"the quickstart needs {module.partition('.')[0]}")
    out.mkdir(parents=True, exist_ok=True)
    seconds: dict[str, float] = {}
    stage = partial(add_seconds, seconds)
    with stage(recipe.making):
        sources, facts = recipe.make(corpus, seed)
    report = facts | {"recipe_chosen_on": recipe.chosen_on.format(**facts), "runs": {}}
    report |= {"device": describe_device(device), "num_threads": torch.get_num_threads()}
    shown: dict[str, Run | Report] = {}
    for name, study in recipe.studies.items():
        folder, source = out / name, sources[name]
        config = study.config(source, seed) | {"seed_everything": seed, "run_dir": str(folder)}
        with stage("pretrain"):
            trained = _pretrain(name, config, steps or study.num_steps, device)
        with stage("bound"):
            print(evaluation := evaluate(folder, source, device=device, **study.evaluation))
            bounds = evaluation["bounds"]
        if study.tasks:
            with stage("probes"):
                print(probed := _probe(study, folder, source, bounds, device))
            report |= _accuracies(recipe, study, probed)
            shown[f"{name.capitalize()}: accuracy of linear probes"] = probed
        shown[f"{name.capitalize()}: bound on held-out batches"] = evaluation
        shown[f"{name.capitalize()}: bound over training"] = Run(folder)
        model = load_pretrained(folder)
        report |= {"latent_dim": model.encoder.dim, "context_dim": model.context.dim}
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


def _pretrain(name: str, config: Config, num_steps: int, device: str) -> dict[str, Any]:
    """Train for `num_steps`, in bfloat16 on a GPU and in float32 elsewhere; return the steps and the precision."""
    accelerator, _, index = device.partition(":")
    precision = "bf16-mixed" if accelerator == "cuda" else "32-true"
    trainer = {"max_steps": num_steps, "precision": precision, "gradient_clip_val": 1.0}
    trainer |= {"accelerator": accelerator, "devices": [int(index)] if index else 1}
    print(f"pretraining on {name}: {num_steps} steps in {precision}", flush=True)
    pretrain(config | {"trainer": trainer})
    return {"num_train_steps": num_steps, "precision": precision}


def _probe(study: Study, folder: Path, source: Path, bounds: list[dict[str, Any]], device: str) -> Report:
    extraction = Extraction(device=device, precision="bfloat16" if device.startswith("cuda") else "float32")
    tasks = tuple(study.tasks.values())
    return probes.probe(folder, source, tasks, held_out=bounds, extraction=extraction, **study.probe)


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
