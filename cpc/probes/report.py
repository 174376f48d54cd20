"""`cpc probe`: one report of probes on a model's features, baselines, label efficiency and the held-out bound."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from cpc.checkpoint import load_pretrained, place_of_results, read_config
from cpc.config.argument_rules import Count, Natural, OutFile, Positive, Range, checked
from cpc.data.probe_data import ProbeData
from cpc.data.store.atomic import finite, write_atomically, write_json
from cpc.data.store.fingerprints import count_copies, fingerprint_record
from cpc.pages.report import Report, drawn
from cpc.probes.comparison import NETWORKS, Comparison
from cpc.probes.reading import Reading, Unit
from cpc.probes.record import REPORT_NAME, heading, read_report
from cpc.probes.store import Extraction, build_untrained, open_probe_data
from cpc.probes.supervised import DEFAULT_SECONDS, SupervisedProtocol
from cpc.probes.tables import draw_label_efficiency, draw_probes, probe_tables
from cpc.probes.task import SHARE, Task

CURVE_NAME = "label_efficiency.png"


@checked
def probe(
    model_folder: str | Path,
    data: str | Path,
    task: str | Sequence[str],
    *,
    features: Sequence[str] | None = None,
    baselines: Sequence[str] | None = None,
    label_shares: Sequence[Annotated[float, SHARE]] | None = None,
    pool: str | None = None,
    normalise: Unit | None = None,
    frames_around: Natural = 0,
    train_split: str | None = None,
    test_split: str | None = None,
    folds: str | None = None,
    num_folds: Annotated[int, Range(2)] | None = None,
    train_minutes: Positive | None = None,
    l2: Positive | None = None,
    supervised_seconds: Positive | None = None,
    supervised: Mapping[str, Any] | None = None,
    num_random_models: Count | None = None,
    held_out: Sequence[Mapping[str, Any]] | None = None,
    extraction: Extraction | None = None,
    out: OutFile | None = None,
    trusted_packages: Sequence[str] = ("cpc",),
    **data_options: Any,
) -> Report:
    """Probe a model for one or several tasks, next to its baselines and its held-out bound; write the report.

    Features are extracted once per network and shared by all tasks.

    Args:
        model_folder: a model folder, or a run folder that holds one.
        data: manifest CSV, or the folder that holds it; for images a folder, npz or NAME:ROOT.
        task: phones, speaker, or label columns of the manifest; class for images; or the name of a family of tasks.
        features: features of the model (c, z; for images also z_grid and c_grid) and hand-made features; if not given,
            c z mfcc, or for images z z_grid c (z and c are means over the grid, z_grid and c_grid the whole grid).
        baselines: majority; random (the architecture untrained); supervised (the architecture trained for the task);
            fine_tuned (the model itself trained further for the task); neighbours (nearest neighbours by the first
            feature; not for frames); and hand-made features (mfcc, logmel; pixels, hog). If not given, majority random
            supervised, and for images also pixels; an empty list for no baselines.
        label_shares: add a curve over these shares of the labels, such as 0.01 0.02 0.05 0.1 0.2 0.5 1; not for frames.
        pool: `frames`, `mean`, `mean_std` or `segments:N`: probe every frame, or one vector of each file; depends on
            the task if not given.
        normalise: `speaker` or `recording`: take out mean and deviation of the vectors of each, of every feature alike.
            A network that was trained with labels is then read by a new probe.
        frames_around: number of frames on each side that a probe reads beside each frame, likewise.
        train_split: split for training probes, and for the statistics and data initialisation of baselines; train if
            not given.
        test_split: split for testing; valid for speaker, else test, if not given.
        folds: column for cross-validation instead of two splits, such as speaker; the groups of the column are
            distributed over the folds in their order. Each fold is tested by probes of the other folds; intervals are
            over the groups.
        num_folds: number of folds; 4, or the modality's default, if not given.
        train_minutes: train probes on this many minutes of random audio of the split; networks are trained on the whole
            split.
        l2: weight of the penalty of probes: scikit-learn's C = 1 / l2 (2 / l2 for two classes). If not given, it is
            chosen on held-out groups of the training part.
        supervised_seconds: budget of the baselines supervised and fine_tuned, for each task, fold and share of the
            labels; 75 if not given.
        supervised: other fields of `SupervisedProtocol` that differ from the modality's recipe.
        num_random_models: number of untrained models of the baseline random, with different initial weights, whose
            answers are averaged; 1 if not given.
        held_out: lines of `bound.jsonl` of this checkpoint; if not given, the lines in the model's config.json.
        extraction: how features are computed and kept.
        out: JSON file; probe.json in the model's folder if not given. The curve is saved next to it.
        trusted_packages: packages whose classes the model and its data may name.
        data_options: fields of the run's `data`, such as `alignments` for audio.

    Returns:
        The report. `tasks[NAME]["results"]` has a record of `ProbeResult` by name; the name `cpc` is the modality's
        first feature. `bound` has the held-out records. All other entries are the protocol. docs/records.md lists the
        keys.

    Raises:
        ValueError: before anything is computed, if a name is unknown, or the corpus cannot be probed for a task.
    """
    if folds is None:
        train_split = train_split or "train"
    elif train_split is not None or test_split is not None:
        raise ValueError(f"`folds` {folds} replaces the splits: leave `train_split` and `test_split` out")
    extraction, trusted_packages = extraction or Extraction(), tuple(trusted_packages)
    out = place_of_results(model_folder, REPORT_NAME, out)
    config = read_config(model_folder)
    earlier = read_report(out, config["sha256"])
    model = load_pretrained(model_folder, device=extraction.device, trusted_packages=trusted_packages)
    probe_data = open_probe_data(
        config, model, data, extraction, train_split, trusted_packages=trusted_packages, data_options=data_options
    )
    seconds = {"seconds": supervised_seconds or DEFAULT_SECONDS}
    comparison = Comparison(
        probe_data,
        features=probe_data.default_features if features is None else features,
        baselines=probe_data.default_baselines if baselines is None else baselines,
        l2=l2,
        supervised=SupervisedProtocol(**{**(probe_data.supervised or {}), **seconds, **(supervised or {})}),
        extraction=extraction,
        label_shares=label_shares or (),
        num_random_models=num_random_models or 1,
        reading=Reading(normalise, frames_around),
    )
    for option, value, needed in (
        ("num_random_models", num_random_models, ("random",)),
        ("supervised_seconds", supervised_seconds, NETWORKS),
    ):
        if value is not None and not set(needed) & set(comparison.baselines):
            print(f"{option}={value:g} has no effect without the baseline {' or '.join(needed)}", file=sys.stderr)
    names, families = _task_names(probe_data, [task] if isinstance(task, str) else task)
    splits: dict[str, Any] = {"pool": pool, "test_split": test_split, "folds": folds, "num_folds": num_folds}
    tasks = [Task(name, probe_data, **splits) for name in names]
    for each in tasks:
        comparison.check(each)
    probe_data.prepare()
    probed = tasks if train_minutes is None else _trained_on_minutes(tasks, probe_data, train_minutes)
    provenance = config["provenance"]
    trained_on = provenance.get("trained_on") if probe_data.is_content_of_training else None
    copies = {each.name: _count_copies(each, probe_data, trained_on) for each in tasks}
    comparison.measure(tasks, model, partial(build_untrained, config, probe_data, trusted_packages), probed)
    report: dict[str, Any] = finite(
        {
            **heading(model_folder, config),
            "bound": list(provenance.get("held_out", []) if held_out is None else held_out),
            "tasks": {
                each.name: {
                    **copies[each.name],
                    "protocol": each.record(),
                    "results": {name: asdict(result) for name, result in comparison.results[each.name].items()},
                    "label_efficiency": None if label_shares is None else comparison.curves[each.name],
                }
                for each in probed
            },
            "families": _family_means(families, comparison.results),
            "abx": earlier.get("abx", {}),
            "protocol": comparison.record()
            | {"train_minutes": train_minutes, "of_the_run": provenance.get("data", {})},
            "data": {"source": str(data), f"num_{probe_data.unit}s": len(probe_data.splits), **probe_data.record()},
            "seconds": comparison.seconds,
        }
    )
    tables = probe_tables(report)
    _draw_curves(report, out)
    write_json(report, out)  # written last, so that the previous report survives an earlier failure
    return Report(report, tables, partial(draw_probes, report), out)


def _task_names(probe_data: ProbeData, names: Sequence[str]) -> tuple[list[str], dict[str, Sequence[str]]]:
    """Return the names of all tasks, without repetitions, and the families among them with their members."""
    families_by_name = {name: probe_data.families(name) for name in names}
    families = {family: members for found in families_by_name.values() for family, members in found.items()}
    tasks = [task for name, found in families_by_name.items() for task in (chain(*found.values()) if found else [name])]
    return [task for task in dict.fromkeys(tasks) if task not in families], families


def _count_copies(task: Task, probe_data: ProbeData, trained_on: Mapping[str, Any] | None) -> dict[str, Any]:
    """Count the test files that the model was pretrained on, and copies of training files; None if unknown."""
    content, unit = probe_data.content, probe_data.source_unit
    found = [count_copies(content(fold.test), fingerprint_record(content(fold.train)), unit) for fold in task.folds]
    counts = [each for each in found if each is not None]
    sums = {name: sum(each[name] for each in counts) for name in ("num_shared", "num_compared", "num_tested")}
    return {
        "pretrained_on": count_copies(content(task.test), trained_on, unit),
        "copies_of_training": {**sums, "unit": unit} if counts else None,
    }


def _family_means(families: Mapping[str, Sequence[str]], results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the members of each family, and its mean F1 over the members by name of the result."""
    f1 = {task: {name: each.f1_percent for name, each in by_name.items()} for task, by_name in results.items()}
    for family, members in families.items():
        f1[family] = {name: float(np.mean([f1[member][name] for member in members])) for name in f1[members[0]]}
    return {family: {"members": list(members), "f1_percent": f1[family]} for family, members in families.items()}


def _trained_on_minutes(tasks: Sequence[Task], probe_data: Any, minutes: float) -> list[Task]:
    """Return the tasks with at most this many minutes of training observations, and at least one, chosen at random."""
    rows = np.unique(np.concatenate([task.train for task in tasks]))
    durations = probe_data.minutes(rows)
    if durations is None:
        raise ValueError(f"`train_minutes` is {minutes:g}, but {probe_data.unit}s have no duration")
    rows, durations = rows[durations > 0], durations[durations > 0]  # a skipped observation has the duration 0
    order = np.random.default_rng(0).permutation(len(rows))
    chosen = rows[order[: max(1, int((np.cumsum(durations[order]) <= minutes).sum()))]]
    return [task.trained_on(chosen) for task in tasks]


def _draw_curves(report: Mapping[str, Any], out: Path) -> None:
    for name, task in report["tasks"].items():
        if task["label_efficiency"] is not None:
            protocol = task["protocol"]
            title = f"{len(protocol['classes'])} classes, {protocol['num_test']} test {protocol['unit']}s"
            figure = drawn(partial(draw_label_efficiency, task["label_efficiency"], f"label efficiency: {title}"))
            file = CURVE_NAME if len(report["tasks"]) == 1 else f"label_efficiency_{name.replace('/', '_')}.png"
            with write_atomically(out.with_name(file)) as new:
                figure.savefig(new, format="png")
