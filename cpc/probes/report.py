"""The whole comparison: a model's features, its baselines, and the bound beside them, in one record."""

import hashlib
import json
import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from cpc import __version__
from cpc.checkpoint import load_pretrained, read_config
from cpc.data.audio import Audio
from cpc.data.manifest import Manifest, read_manifest
from cpc.data.pack import PackedAudio, pack
from cpc.model import CPC
from cpc.probes.baselines import answer_by_frequency, untrained_model
from cpc.probes.features import Features, Kind, Precision
from cpc.probes.linear import ProbeProtocol, fit_probe, standardise
from cpc.probes.results import CONFIDENCE, Answers, ProbeResult, summarise
from cpc.probes.store import DEFAULT_MAX_RAM_BYTES, FeatureStore
from cpc.probes.supervised import SupervisedProtocol, train_supervised
from cpc.probes.targets import Examples, Pool, Task

SCHEMA = 1
FEATURES = ("c", "z", "mfcc", "logmel")
BASELINES = ("majority", "random", "supervised")
_NAME_OF = {"c": "cpc", "z": "cpc_z"}
_RANDOM_NAME_OF = {"c": "random", "z": "random_z"}


@dataclass(frozen=True)
class Extraction:
    """How and where features are computed and kept.

    Attributes:
        device: where networks and probes run.
        precision: of the encoder's products, see `Features`.
        max_ram_bytes: larger feature stores are memory-mapped.
        scratch_dir: folder for these; the system's for temporary files unless given.
        dtype: of stored features.
        cache_dir: folder of packed audio; beside the manifest unless given.
        skip_bad: go on without files that cannot be read.
        progress: show progress bars.
    """

    device: str = "cpu"
    precision: Precision = "float32"
    max_ram_bytes: int = DEFAULT_MAX_RAM_BYTES
    scratch_dir: str | Path | None = None
    dtype: Literal["float32", "float16"] = "float32"
    cache_dir: str | Path | None = None
    skip_bad: bool = False
    progress: bool = True


def probe_report(
    model_folder: str | Path,
    manifest: str | Path | Manifest,
    tasks: str | Sequence[str],
    *,
    features: Sequence[str] = ("c", "z", "mfcc"),
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
        train_split: where probes are trained.
        test_split: where they are tested, see `Task`.
        train_minutes: train probes and baselines on that much audio, drawn at random from the training part.
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
    extraction, protocol = extraction or Extraction(), protocol or ProbeProtocol()
    supervised = supervised or SupervisedProtocol(precision=extraction.precision)
    config = read_config(model_folder)
    model = load_pretrained(model_folder, device=extraction.device, trusted_packages=trusted_packages)
    manifest = manifest if isinstance(manifest, Manifest) else read_manifest(manifest)
    names = [tasks] if isinstance(tasks, str) else list(dict.fromkeys(tasks))

    def make_tasks(train_rows: np.ndarray | None) -> list[Task]:
        splits = {"train_split": train_split, "test_split": test_split}
        return [
            Task(name, manifest, alignments=alignments, pool=pool, train_rows=train_rows, **splits) for name in names
        ]

    probed = make_tasks(None)  # mistakes show before the audio is decoded
    audio = pack(
        manifest,
        model.encoder.sample_rate_hz,
        extraction.cache_dir,
        skip_bad=extraction.skip_bad,
        progress=extraction.progress,
    )
    if train_minutes is not None:
        probed = make_tasks(_some_minutes(audio, probed, train_minutes))
    run = _Run(manifest, audio, probed, protocol, extraction)
    kinds = [kind for kind in features if kind in ("c", "z")]
    if kinds:
        kind: Any = "zc" if len(kinds) == 2 else kinds[0]
        run.probe(run.features(kind, model), {each: _NAME_OF[each] for each in kinds})
    for kind in (each for each in features if each not in kinds):
        run.probe(run.features(kind), {kind: kind})
    training_audio = audio.subset(np.unique(np.concatenate([task.train for task in probed])))

    def untrained(seed: int) -> CPC:
        return untrained_model(
            config["architecture"], training_audio, audio.statistics, seed, trusted_packages=trusted_packages
        )

    if "random" in baselines:
        kind = (kinds or ["c"])[0]
        for seed in range(num_random_models):
            run.probe(run.features(kind, untrained(seed)), {kind: _RANDOM_NAME_OF[kind]}, seeds=[seed])
    if "supervised" in baselines:
        for task in probed:
            run.supervise(task, untrained(supervised.seed), supervised)
    if "majority" in baselines:
        run.answer_by_frequency()
    report = {
        "schema": SCHEMA,
        "model": {"folder": str(model_folder), "sha256": config["sha256"], "step": config["provenance"].get("step")},
        "bound": [dict(record) for record in (config["provenance"].get("held_out", []) if held_out is None else held_out)],
        "tasks": {task.name: run.record(task) for task in probed},
        "protocol": {
            "probe": protocol.record(),
            "standardisation": "mean and deviation of each feature over the labelled training examples",
            "confidence": CONFIDENCE,
            "train_minutes": train_minutes,
            "num_random_models": num_random_models if "random" in baselines else 0,
            "supervised": supervised.record() | {"num_steps_taken": run.num_supervised_steps}
            if "supervised" in baselines
            else None,
            "extraction": {name: asdict(extraction)[name] for name in ("device", "precision", "dtype")},
        },
        "features": run.geometries,
        "data": {"manifest": str(manifest.root), "sha256": _hash(manifest), "num_files": len(manifest)},
        "versions": {
            "cpc": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "seconds": {name: round(seconds, 2) for name, seconds in run.seconds.items()},
    }
    report = _finite(report)
    if out is not None:
        _write(Path(out), report)
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
        lines.append(f"  {'':12} {'accuracy':>9}  {'95 % interval':>15}  {'H(Y) - CE, nats':>15}")
        for name, result in task["results"].items():
            interval = result["accuracy_interval_percent"]
            between = "" if interval is None else f"{interval[0]:.1f} to {interval[1]:.1f}"
            lines.append(
                f"  {name:12} {result['accuracy_percent']:7.1f} %  {between:>15}  {result['label_information_nats']:15.3f}"
            )
        shown = next(iter(task["results"].values()))
        unseen = f", {shown['num_unseen']} of them of a label unseen in training: errors" if shown["num_unseen"] else ""
        lines.append(
            f"  H(Y) = {shown['label_entropy_nats']:.3f} nats; {shown['num_test']} test examples{unseen}; intervals over "
            f"{shown['num_clusters']} {protocol['clusters']}s"
        )
        lines.append("")
    if not report["bound"]:
        lines.append("held-out bound log N - L: not recorded with this model; measure it with cpc evaluate")
    for record in report["bound"][:1]:
        lines.append(f"held-out bound log N - L of the same weights ({record['strategy']}, split {record['split']}):")
        for title, key in (("bound, nats", "mi_bound_nats"), ("ceiling, nats", "mi_ceiling_nats")):
            values = " ".join("   -" if value is None else f"{value:4.2f}" for value in record[key])
            lines.append(f"  {title:14} k = 1..{len(record[key])}: {values}")
    return "\n".join(lines)


@dataclass
class _Run:
    """The comparison in progress: one front end after the other, each for all tasks."""

    manifest: Manifest
    audio: PackedAudio
    tasks: list[Task]
    protocol: ProbeProtocol
    extraction: Extraction
    answers: dict[tuple[str, str], list[Answers]] = field(default_factory=dict)  # of (task, name), one per seed
    parts: dict[tuple[str, str], tuple[int, Examples]] = field(default_factory=dict)  # (num_train, test)
    majority: dict[str, Answers] = field(default_factory=dict)
    geometries: dict[str, dict[str, Any]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    num_supervised_steps: dict[str, int] = field(default_factory=dict)
