"""The whole comparison: a model's features, its baselines, and the bound beside them, in one record."""

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cpc import __version__
from cpc.bounds.bound import record_table
from cpc.checkpoint import load_pretrained, read_config
from cpc.data.audio.manifest import Manifest, read_manifest
from cpc.data.audio.pack import PackedAudio, pack
from cpc.data.audio.windows import NUM_INITIALISATION_WINDOWS
from cpc.data.store.atomic import write_json
from cpc.model import CPC
from cpc.probes.baselines import untrained_model
from cpc.probes.comparison import Comparison, Extraction
from cpc.probes.features import Kind
from cpc.probes.linear import ProbeProtocol
from cpc.probes.results import CONFIDENCE, as_json, results_table
from cpc.probes.supervised import SupervisedProtocol
from cpc.probes.targets import Pool, Task

SCHEMA = 1
FEATURES = ("c", "z", "mfcc", "logmel")
BASELINES = ("majority", "random", "supervised")
ORDER = ("majority", "random", "random_z", "mfcc", "logmel", "cpc", "cpc_z", "supervised")
_UNRECORDED_WINDOW_LATENTS = 128
_NAME_OF = {"c": "cpc", "z": "cpc_z", "mfcc": "mfcc", "logmel": "logmel"}
_RANDOM_NAME_OF = {"c": "random", "z": "random_z"}


def probe_report(
    model_folder: str | Path,
    manifest: str | Path | Manifest,
    tasks: str | Sequence[str],
    *,
    features: Sequence[Kind] = ("c", "z", "mfcc"),
    baselines: Sequence[str] = BASELINES,
    alignments: str | Path | None = None,
    pool: Pool | None = None,
    train_split: str = "train",
    test_split: str | None = None,
    train_minutes: float | None = None,
    protocol: ProbeProtocol | None = None,
    supervised: SupervisedProtocol | None = None,
    num_random_models: int = 3,
    held_out: Sequence[Mapping[str, Any]] | None = None,
    extraction: Extraction | None = None,
    trusted_packages: tuple[str, ...] = ("cpc",),
    out: str | Path | None = None,
) -> dict[str, Any]:
    """Probe a model for one or several tasks, beside its baselines and its held-out bound.

    Features are extracted once per network and shared by all tasks.

    Args:
        model_folder: as `cpc.load_pretrained` takes it.
        manifest: the corpus.
        tasks: `phones`, `speaker`, or other columns of the manifest.
        features: of `c`, `z`, `mfcc`, `logmel`; results of `c` are called `cpc`, of `z` `cpc_z`.
        baselines: of `majority`, `random` (the first of `c` and `z` asked for, of the same architecture untrained, data
            initialisation included) and `supervised` (the same architecture trained for the task).
        alignments: for `phones`, see `Task`.
        pool: see `Task`.
        train_split: where probes are trained; input statistics and data initialisation of baselines are taken there.
        test_split: where they are tested, see `Task`.
        train_minutes: train probes on that much audio, drawn at random from the training part; the supervised baseline
            takes all of it.
        protocol: how probes are trained.
        supervised: how the supervised baseline is trained, per task.
        num_random_models: untrained models whose answers are averaged.
        held_out: lines of `bound.jsonl` of this checkpoint; those kept in its config.json unless given.
        extraction: how features are computed and kept.
        trusted_packages: packages whose classes the model may name.
        out: file to write the report to.

    Returns:
        The content of `probe.json`: `tasks[NAME]["results"]` holds a record of `ProbeResult` for `majority`, `random`,
        `mfcc`, `cpc`, `cpc_z`, `supervised`; `bound` the held-out records; the rest is the protocol.

    Raises:
        ValueError: before anything is computed, on unknown names or tasks that the corpus cannot serve.
    """
    _check_names("features", features, FEATURES)
    _check_names("baselines", baselines, BASELINES)
    if train_minutes is not None and train_minutes <= 0:
        raise ValueError(f"train_minutes={train_minutes} must be positive; leave it out to train on all")
    extraction, protocol = extraction or Extraction(), protocol or ProbeProtocol()
    supervised = supervised or SupervisedProtocol(precision=extraction.precision)
    config = read_config(model_folder)
    model = load_pretrained(model_folder, device=extraction.device, trusted_packages=trusted_packages)
    manifest = manifest if isinstance(manifest, Manifest) else read_manifest(manifest)
    names = [tasks] if isinstance(tasks, str) else list(dict.fromkeys(tasks))
    whole_tasks = [
        Task(name, manifest, alignments=alignments, pool=pool, train_split=train_split, test_split=test_split)
        for name in names
    ]
    audio = pack(
        manifest,
        model.encoder.sample_rate_hz,
        extraction.cache_dir,
        skip_bad=extraction.skip_bad,
        progress=extraction.progress,
    )
    train_rows = np.unique(np.concatenate([task.train for task in whole_tasks]))
    train_rows = train_rows[audio.num_samples[train_rows] > 0]  # files left out take no share of train_minutes
    chosen = train_rows if train_minutes is None else _choose(audio, train_rows, train_minutes)
    training_audio = audio.subset(manifest.rows(train_split))
    statistics = training_audio.statistics
    comparison = Comparison(
        manifest, audio, [task.trained_on(chosen) for task in whole_tasks], statistics, protocol, extraction
    )
    initialisation = _initialisation(config, model.encoder.hop_samples)

    def untrained(seed: int) -> CPC:
        return untrained_model(
            config["architecture"],
            training_audio,
            statistics,
            initialisation["window_samples"],
            seed,
            trusted_packages=trusted_packages,
        )

    learnt: list[Kind] = [kind for kind in features if kind in ("c", "z")]
    if learnt:
        both: Kind = "zc" if len(learnt) == 2 else learnt[0]
        comparison.probe(
            {kind: _NAME_OF[kind] for kind in learnt}, [comparison.features(both, model)], protocol.num_seeds
        )
    for kind in (kind for kind in features if kind not in learnt):
        comparison.probe({kind: _NAME_OF[kind]}, [comparison.features(kind)], protocol.num_seeds)
    if "random" in baselines:
        kind = learnt[0] if learnt else "c"
        models = (comparison.features(kind, untrained(seed)) for seed in range(num_random_models))
        comparison.probe({kind: _RANDOM_NAME_OF[kind]}, models, num_seeds=1)
    if "supervised" in baselines:
        for task in whole_tasks:
            comparison.supervise("supervised", task, untrained(supervised.seed), supervised)
    if "majority" in baselines:
        comparison.guess("majority")
    report = as_json(
        {
            "schema": SCHEMA,
            "model": {
                "folder": str(model_folder),
                "sha256": config["sha256"],
                "step": config["provenance"].get("step"),
            },
            "bound": list(config["provenance"].get("held_out", []) if held_out is None else held_out),
            "tasks": {task.name: _task_record(task, comparison) for task in comparison.tasks},
            "protocol": {
                "probe": protocol.record(),
                "standardisation": "mean and deviation of each feature over the training examples",
                "confidence": CONFIDENCE,
                "train_minutes": train_minutes,
                "num_random_models": num_random_models,
                "untrained_models": initialisation,
                "supervised": supervised.record(),
                "features": comparison.geometries,
                "num_files_too_short": comparison.num_too_short,
                "device": extraction.device,
                "precision": extraction.precision,
                "dtype": extraction.dtype,
            },
            "data": {
                "manifest": str(manifest.root),
                "sha256": hashlib.sha256(json.dumps(manifest.columns).encode()).hexdigest(),
                "num_files": len(manifest),
                "num_files_skipped": len(audio.skipped),
            },
            "versions": {
                "cpc": __version__,
                "torch": torch.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
            "seconds": {name: round(seconds, 2) for name, seconds in comparison.seconds.items()},
        }
    )
    if out is not None:
        write_json(report, out)
    return report


def format_report(report: Mapping[str, Any]) -> str:
    """The report as a table for people."""
    lines = []
    for task in report["tasks"].values():
        protocol = task["protocol"]
        lines.append(
            f"{protocol['task']}: {len(protocol['classes'])} classes, split {protocol['train_split']} -> "
            f"{protocol['test_split']}, {'every frame' if protocol['pool'] == 'frames' else 'mean over the file'}"
        )
        lines += results_table(task["results"])
        shown = next(iter(task["results"].values()))
        lines.append(
            f"  H(Y) = {shown['label_entropy_nats']:.3f} nats; {shown['num_test']} test examples, "
            f"{shown['num_unseen']} of them errors by a label unseen in training; intervals over "
            f"{shown['num_clusters']} {protocol['clusters']}s"
        )
        lines.append("")
    return "\n".join([*lines, *record_table(report["bound"])])


def _check_names(option: str, given: Sequence[str], legal: Sequence[str]) -> None:
    unknown = [name for name in given if name not in legal]
    if unknown or isinstance(given, str):
        raise ValueError(f"{option}={given!r}: legal are {', '.join(legal)}")


def _choose(audio: PackedAudio, rows: np.ndarray, minutes: float) -> np.ndarray:
    """Files drawn at random, as many as fit into so many minutes, at least one."""
    shuffled = np.random.default_rng(0).permutation(rows)
    total_minutes = np.cumsum(audio.num_samples[shuffled]) / audio.sample_rate_hz / 60
    return np.sort(shuffled[: max(1, int((total_minutes <= minutes).sum()))])


def _initialisation(config: Mapping[str, Any], hop_samples: int) -> dict[str, Any]:
    """The windows that untrained models are initialised from: those of the model's own training, where it is known."""
    recorded = config["provenance"].get("data", {}).get("init_args", {}).get("window_samples")
    return {
        "window_samples": recorded or _UNRECORDED_WINDOW_LATENTS * hop_samples,
        "window_samples_from": "the run that exported the model"
        if recorded
        else f"not recorded with the model: {_UNRECORDED_WINDOW_LATENTS} latents",
        "num_windows": NUM_INITIALISATION_WINDOWS,
        "windows_from": "the training split, without padding",
        "statistics_from": "the training split",
    }


def _task_record(task: Task, comparison: Comparison) -> dict[str, Any]:
    results = comparison.results[task.name]
    return {
        "protocol": task.record(),
        "results": {name: results[name].record() for name in ORDER if name in results},
    }
