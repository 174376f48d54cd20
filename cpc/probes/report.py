"""The whole comparison: a model's features, its baselines, the labels that it saves, and the bound, in one record."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from cpc.bounds.bound import record_table
from cpc.checkpoint import load_pretrained, place_of_results, read_config
from cpc.config.argument_rules import Count, OutFile, Positive, Range, checked
from cpc.data.probe_data import Pool
from cpc.data.store.atomic import finite, write_atomically, write_json
from cpc.probes.classifier import ProbeProtocol
from cpc.probes.clock import Clock
from cpc.probes.comparison import Comparison
from cpc.probes.curve import picture_label_efficiency
from cpc.probes.open import build_untrained, check_names, open_readouts
from cpc.probes.record import REPORT_NAME, heading, read_report
from cpc.probes.results import CONFIDENCE, results_table
from cpc.probes.store import Extraction
from cpc.probes.supervised import DEFAULT_SECONDS, SupervisedProtocol
from cpc.probes.task import Task, check_share

CURVE_NAME = "label_efficiency.png"
BASELINES = ("majority", "random", "neighbours")
NETWORKS = ("supervised", "fine_tuned")


@checked
def probe(
    model_folder: str | Path,
    data: str | Path,
    task: str | Sequence[str],
    *,
    features: Sequence[str] | None = None,
    baselines: Sequence[str] | None = None,
    label_shares: Sequence[Annotated[float, Range(0, 1, is_open=True)]] | None = None,
    pool: Pool | None = None,
    train_split: str | None = None,
    test_split: str | None = None,
    folds: str | None = None,
    num_folds: Annotated[int, Range(2)] | None = None,
    train_minutes: Positive | None = None,
    protocol: ProbeProtocol | None = None,
    supervised_seconds: Positive | None = None,
    supervised: Mapping[str, Any] | None = None,
    num_random_models: Count | None = None,
    held_out: Sequence[Mapping[str, Any]] | None = None,
    extraction: Extraction | None = None,
    out: OutFile | None = None,
    trusted_packages: Sequence[str] = ("cpc",),
    **data_options: Any,
) -> dict[str, Any]:
    """Probe a model for one or several tasks, beside its baselines and its held-out bound; print the report, write it.

    Features are extracted once per network and shared by all tasks.

    Args:
        model_folder: a model folder, or a run folder that holds one.
        data: manifest CSV, or the folder that holds it; for images a folder, npz or NAME:ROOT.
        task: phones, speaker, or label columns of the manifest; class for images; or a name for a family of tasks.
        features: what to probe: of the model (c, z; of images z_grid and c_grid too) or hand-made; if not given,
            c z mfcc, and for images z z_grid c (means over the grid, or all of it).
        baselines: of majority, random (the architecture untrained), supervised (the architecture trained for the task),
            fine_tuned (the same, from the model's weights), neighbours (by the first feature; not of frames), and
            hand-made features (mfcc, logmel; pixels, hog); none with an empty list; if not given, majority random
            supervised, and for images pixels too.
        label_shares: also a curve over these shares of the labels, such as 0.01 0.02 0.05 0.1 0.2 0.5 1; not of frames.
        pool: every frame, or a file's mean; by task if not given.
        train_split: where probes are trained, and where baselines take their statistics and data initialisation; train
            if not given.
        test_split: where they are tested; valid for speaker, else test, if not given.
        folds: cross-validation in place of two splits: a column, such as speaker, whose groups are shared out among
            folds, in their order. Each fold is tested by probes of the others; intervals are over the groups.
        num_folds: how many; 4 if not given, or as the modality has it.
        train_minutes: train probes on that much audio of the split, drawn at random; networks take all of it.
        protocol: how probes are trained.
        supervised_seconds: budget of the baselines supervised and fine_tuned, for each task, fold and share of the
            labels; 75 if not given.
        supervised: other fields of `SupervisedProtocol` that differ from the modality's recipe.
        num_random_models: untrained models of the baseline random, of different initial weights, whose answers are
            averaged; 1 if not given.
        held_out: lines of `bound.jsonl` of this checkpoint; those kept in its config.json unless given.
        extraction: how features are computed and kept.
        out: JSON file; probe.json in the model's folder if not given. A curve is drawn beside it.
        trusted_packages: packages whose classes the model and its data may name.
        data_options: fields of the run's `data`, such as `alignments` of audio.

    Returns:
        What is written: `tasks[NAME]["results"]` holds a record of `ProbeResult` by name, `cpc` that of the modality's
        first feature; `bound` the held-out records; the rest is the protocol. docs/records.md has the keys.

    Raises:
        ValueError: before anything is computed, on unknown names, options that the modality has no meaning for, or
            tasks that the corpus cannot serve.
    """
    for share in label_shares or ():
        check_share(share)
    if folds is None:
        train_split = train_split or "train"
    elif train_split is not None or test_split is not None:
        raise ValueError(f"`folds` {folds} tests on every fold in turn: leave `train_split` and `test_split` out")
    extraction, protocol = extraction or Extraction(), protocol or ProbeProtocol()
    out = place_of_results(model_folder, REPORT_NAME, out)
    trusted_packages = tuple(trusted_packages)
    config = read_config(model_folder)
    earlier = read_report(out, config["sha256"])
    model = load_pretrained(model_folder, device=extraction.device, trusted_packages=trusted_packages)
    readouts = open_readouts(
        config,
        model,
        data,
        cache_dir=extraction.cache_dir,
        skip_bad=extraction.skip_bad,
        trusted_packages=trusted_packages,
        train_split=train_split,
        device=extraction.device,
        precision=extraction.precision,
        data_options=data_options,
    )
    named = {name: readouts.families(name) for name in ([task] if isinstance(task, str) else task)}
    families = {family: members for found in named.values() for family, members in found.items()}
    members = [each for name, found in named.items() for each in (chain(*found.values()) if found else [name])]
    task = [each for each in members if each not in families]
    features = readouts.default_features if features is None else features
    baselines = readouts.default_baselines if baselines is None else baselines
    networks = NETWORKS if readouts.supervised is not None else ()
    check_names("features", features, [*readouts.features, *readouts.hand_made])
    check_names("baselines", baselines, [*BASELINES, *networks, *readouts.hand_made])
    if num_random_models is not None and "random" not in baselines:
        print(f"num_random_models={num_random_models} has no effect without the baseline random", file=sys.stderr)
    if supervised_seconds is not None and not {"supervised", "fine_tuned"} & set(baselines):
        told = f"supervised_seconds={supervised_seconds:g} has no effect without the baseline supervised or fine_tuned"
        print(told, file=sys.stderr)
    tasks = [task] if isinstance(task, str) else dict.fromkeys(task)
    whole = [Task(name, readouts, pool=pool, test_split=test_split, folds=folds, num_folds=num_folds) for name in tasks]
    for each in whole:
        if each.pool == "frames" and "neighbours" in baselines:
            raise ValueError(
                f"baselines: neighbours are of whole {readouts.unit}s, but task {each.name!r} labels every frame: set "
                "`pool` to mean, or leave them out"
            )
        for share in label_shares or ():
            each.subset(share)
    num_random_models = num_random_models or 1
    budget = {"seconds": supervised_seconds or DEFAULT_SECONDS, **(supervised or {})}
    recipe = SupervisedProtocol(**{**(readouts.supervised or {}), **budget})
    learnt = whole if train_minutes is None else _trained_on_minutes(whole, readouts, train_minutes)
    hand_made = [name for name in readouts.hand_made if name in (*features, *baselines)]
    front_ends = {name: readouts.front_end([name]) for name in hand_made}
    comparison = Comparison(readouts, whole, learnt, protocol, extraction, label_shares or ())
    of_model, known = [name for name in features if name in readouts.features], ", ".join(readouts.features)
    clock, num_seeds = Clock(), protocol.num_seeds or 1
    untrained = partial(build_untrained, config, readouts, trusted_packages)

    if "neighbours" in baselines and not of_model:
        raise ValueError(f"baselines: neighbours are asked in a feature of the model: name one in `features`, {known}")
    if of_model:
        with clock("cpc"):
            comparison.probe(
                {name: f"cpc{readouts.features[name]}" for name in of_model},
                [readouts.front_end(of_model, model)],
                num_seeds,
                with_shares=True,
                neighbours_of=of_model[0] if "neighbours" in baselines else None,
            )
    for name, front_end in front_ends.items():
        with clock(name):
            comparison.probe({name: name}, [front_end], num_seeds)
    if "random" in baselines:
        read = readouts.untrained_names(of_model)
        with clock("random"):
            names = {name: f"random{readouts.features[name]}" for name in read}
            seeds = range(num_random_models)
            comparison.probe(names, (readouts.front_end(read, untrained(seed)) for seed in seeds), num_seeds=1)
    if "supervised" in baselines:
        with clock("supervised"):
            comparison.supervise("supervised", untrained(recipe.seed), recipe)
    if "fine_tuned" in baselines:
        with clock("fine_tuned"):
            comparison.supervise("fine_tuned", model, recipe, is_pretrained=True)
    if "majority" in baselines:
        comparison.guess("majority", model)
    provenance = config["provenance"]
    report: dict[str, Any] = finite(
        {
            **heading(model_folder, config),
            "bound": list(provenance.get("held_out", []) if held_out is None else held_out),
            "tasks": {
                each.name: {
                    "protocol": each.record(),
                    "results": {name: asdict(result) for name, result in comparison.results[each.name].items()},
                    "label_efficiency": comparison.curves[each.name] if label_shares is not None else None,
                }
                for each in learnt
            },
            "families": _family_means(families, comparison.results),
            "abx": earlier.get("abx", {}),
            "protocol": {
                "probe": asdict(protocol),
                "standardisation": "mean and deviation of each feature over the training examples",
                "confidence": CONFIDENCE,
                "train_minutes": train_minutes,
                "num_random_models": num_random_models,
                "supervised": asdict(recipe),
                "features": comparison.geometries,
                "num_without_features": comparison.num_empty,
                "device": extraction.device,
                "precision": extraction.precision,
                "dtype": extraction.dtype,
                "of_the_run": provenance.get("data", {}),
            },
            "data": {"source": str(data), f"num_{readouts.unit}s": len(readouts.splits), **readouts.record()},
            "seconds": clock.seconds,
        }
    )
    table = format_report(report)
    _draw_curves(report, out)
    write_json(report, out)  # last: what fails before leaves the report that was there
    print(f"{table}\nwritten to {out}")
    return report


def format_report(report: Mapping[str, Any]) -> str:
    """The report as a table for people."""
    lines: list[str] = []
    for name, task in report["tasks"].items():
        protocol, results, curve = task["protocol"], task["results"], task["label_efficiency"]
        units = f"{protocol['unit']}s"
        read = {"frames": ", every frame", "mean": f", mean over the {protocol['unit']}", None: ""}[protocol["pool"]]
        parts = f"split {protocol['train_split']} ({protocol['num_train']} {units}) -> {protocol['test_split']} "
        parts += f"({protocol['num_test']})"
        if protocol["folds"] is not None:
            parts = f"{protocol['num_folds']} folds over {protocol['folds']} ({protocol['num_test']} {units})"
        lines.append(f"{name}: {len(protocol['classes'])} classes, {parts}{read}")
        lines += results_table(results)
        for shown in list(results.values())[:1]:
            lines.append(
                f"  H(Y) = {shown['label_entropy_nats']:.3f} nats; {shown['num_test']} test examples, "
                f"{shown['num_unseen']} of them errors by a label unseen in training; intervals over "
                f"{shown['num_clusters']} {protocol['clusters']}s"
            )
        lines.append("")
        if curve is not None:
            lines += ["accuracy in percent by number of labels", "  " + f"{'':14}" + _row(curve["num_labels"], "d")]
            lines += [f"  {name:14}" + _row(values, ".1f") for name, values in curve["accuracy_percent"].items()]
            lines.append("")
    for name, family in report["families"].items():
        lines.append(f"{name}: mean F1 over {', '.join(family['members'])}")
        lines += [f"  {result:14} {f1:7.1f} %" for result, f1 in family["f1_percent"].items()] + [""]
    return "\n".join([*lines, *record_table(report["bound"])])


def _family_means(families: Mapping[str, Sequence[str]], results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Each family's mean F1 over its members, by the name of the result."""
    f1 = {task: {name: found.f1_percent for name, found in of.items()} for task, of in results.items()}
    for family, members in families.items():
        f1[family] = {name: float(np.mean([f1[each][name] for each in members])) for name in f1[members[0]]}
    return {family: {"members": list(members), "f1_percent": f1[family]} for family, members in families.items()}


def _row(values: Sequence[float | int], form: str) -> str:
    return "".join(f"{value:>8{form}}" for value in values)


def _trained_on_minutes(tasks: Sequence[Task], readouts: Any, minutes: float) -> list[Task]:
    """Observations drawn at random, as many as fit into so many minutes, at least one."""
    rows = np.unique(np.concatenate([task.train for task in tasks]))
    durations = readouts.minutes(rows)
    if durations is None:
        raise ValueError(f"`train_minutes` is {minutes:g}, but {readouts.unit}s have no duration: leave it out")
    rows, durations = rows[durations > 0], durations[durations > 0]  # those left out take no share
    order = np.random.default_rng(0).permutation(len(rows))
    chosen = rows[order[: max(1, int((np.cumsum(durations[order]) <= minutes).sum()))]]
    return [task.trained_on(chosen) for task in tasks]


def _draw_curves(report: Mapping[str, Any], out: Path) -> None:
    for name, task in report["tasks"].items():
        if task["label_efficiency"] is not None:
            num_classes, num_test = len(task["protocol"]["classes"]), task["protocol"]["num_test"]
            title = f"label efficiency: {num_classes} classes, {num_test} test {task['protocol']['unit']}s"
            file = CURVE_NAME if len(report["tasks"]) == 1 else f"label_efficiency_{name.replace('/', '_')}.png"
            with write_atomically(out.with_name(file)) as new:
                picture_label_efficiency(task["label_efficiency"], title).savefig(new, format="png")
