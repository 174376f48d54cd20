"""The figures of signals: the configs of configs/signals, pretrained with several seeds and probed beside baselines.

python -m benchmarks.signals [--hapt FILE] [--watch FILE] [--ludb FILE] [--scp1 FILE] [--out DIR] [--seeds N]
                             [--only NAME ...] [--option=value ...]          (more options go to cpc pretrain)

datasets/{hapt,watch,ludb,uea}/prepare.py write the sources. Models are pretrained without labels, on all people except
those that `data.valid_share` holds out, and probed by folds over people. The ECG and SCP1 are pretrained and probed on
their training split, and tested on their test split. Runs that an earlier call finished are not repeated. Set
OMP_NUM_THREADS=1.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ablations import keep_options, train
from cpc.native.allocator import keep_freed_memory
from cpc.native.processor import prepare_processor
from cpc.probes.report import probe

CONFIGS = Path(__file__).parents[1] / "configs" / "signals"
WINDOWED = ("c", "c_stream")
BASELINES = ("majority", "hand", "random")


@dataclass(frozen=True)
class Study:
    """One table of the report.

    Attributes:
        corpus: the option that names the source.
        config: file in configs/signals.
        options: further options of `cpc pretrain`.
        probe: options of `cpc.probes.report.probe`.
        figure: key of the results.
    """

    corpus: str
    config: str
    probe: dict[str, Any]
    options: Sequence[str] = ()
    figure: str = "accuracy_percent"

    @property
    def run_name(self) -> str:
        """The name of the run, which studies of one corpus share."""
        return f"{self.corpus}_{Path(self.config).stem}"


ACTIVITY_WINDOWS = {"window_seconds": 2.56, "hop_seconds": 1.28, "features": WINDOWED}
COMPANDED = (  # recordings are shorter than a baseline, and hold one exercise
    "--model.encoder.init_args.front=compand",
    "--model.encoder.init_args.baseline_seconds=null",
    "--data.window_seconds=10.24",
    "--data.batch_size=16",
    "--data.augmentation=null",  # exercises differ in how the wrist lies
    "--data.sampler=same_speaker",
    "--model.loss.init_args.negatives=same_speaker",
    "--trainer.max_steps=500",  # the held-out bound falls afterwards
)
STUDIES = {
    "activities": Study(
        "hapt", "activity.yaml", ACTIVITY_WINDOWS | {"task": "activity", "baselines": (*BASELINES, "hand_past")}
    ),
    "transitions": Study(
        "hapt",
        "activity.yaml",
        ACTIVITY_WINDOWS | {"task": "label", "baselines": (*BASELINES, "hand_past")},
        figure="macro_f1_percent",
    ),
    "watch, windows": Study(
        "watch",
        "activity.yaml",
        {"task": "label", "window_seconds": 4.0, "hop_seconds": 2.0, "features": WINDOWED, "baselines": BASELINES},
        COMPANDED,
    ),
    "watch, recordings": Study(
        "watch",
        "activity.yaml",
        {
            "task": "label",
            "window_seconds": 4.0,  # of the hand-made features
            "features": ("c", "z"),
            "baselines": BASELINES,
            "pool": "mean_std",
        },
        COMPANDED,
    ),
    "ECG waves": Study(
        "ludb",
        "ecg.yaml",
        {"task": "label", "features": ("c", "z"), "baselines": ("majority", "random"), "test_split": "test"},
        figure="macro_f1_percent",
    ),
    "SCP1": Study(
        "scp1",
        "eeg.yaml",
        {
            "task": "label",
            "features": ("c", "z"),
            "baselines": ("majority", "random"),
            "test_split": "test",
            "pool": "segments:4",
        },
    ),
}


def trained(study: Study, seed: int, where: argparse.Namespace, options: list[str]) -> Path:
    """Return the run folder of a study and a seed, trained."""
    folder: Path = where.out / f"{study.run_name}_{seed}"
    config = CONFIGS / study.config
    extra = [*study.options, f"--seed_everything={seed}", f"--data.seed={seed}", *options]
    keep_options(folder, config, extra)
    train(folder, ["--config", str(config), f"--data.source={source(study, where)}", *extra])
    return folder


def source(study: Study, where: argparse.Namespace) -> Path:
    path: Path = getattr(where, study.corpus)
    return path


def results(name: str, seed: int, where: argparse.Namespace, options: list[str]) -> dict[str, Any]:
    """Pretrain and probe one study, or read what an earlier call found; return the results by name."""
    study = STUDIES[name]
    folder = trained(study, seed, where, options)
    report = folder / f"{name.replace(', ', '_').replace(' ', '_')}.json"
    if not report.exists():
        probe(folder, source(study, where), out=report, **study.probe)
    tasks: dict[str, Any] = json.loads(report.read_text())["tasks"]
    return {key: result[study.figure] for key, result in tasks[study.probe["task"]]["results"].items()}


def table(found: dict[str, list[dict[str, float]]]) -> str:
    """Return a Markdown table with a row per study: the mean over seeds, and the smallest and largest figure."""
    columns = list(dict.fromkeys(name for seeds in found.values() for each in seeds for name in each))
    lines = [f"| | seeds | {' | '.join(columns)} |", f"|---|---|{'---|' * len(columns)}"]
    for study, seeds in found.items():
        cells = []
        for column in columns:
            values = [each[column] for each in seeds if column in each]
            between = f" ({min(values):.1f} to {max(values):.1f})" if len(set(values)) > 1 else ""
            cells.append(f"{np.mean(values):.1f}{between}" if values else "")
        lines.append(f"| {study} | {len(seeds)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for corpus, file in (("hapt", "hapt"), ("watch", "watch"), ("ludb", "ludb"), ("scp1", "SelfRegulationSCP1")):
        parser.add_argument(f"--{corpus}", type=Path, default=Path("data") / f"{file}.npz")
    parser.add_argument("--out", type=Path, default=Path("runs/signals"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=STUDIES, default=list(STUDIES), metavar="NAME")
    where, options = parser.parse_known_args()
    keep_freed_memory()
    prepare_processor()
    measure = partial(results, where=where, options=options)
    found = {name: [measure(name, seed) for seed in range(where.seeds)] for name in where.only}
    print(table(found))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
