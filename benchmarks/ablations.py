"""Table 2 of van den Oord et al. 2018, rerun on the synthesised corpus: steps predicted, and the negatives' strategy.

A third table compares the encoder's norms, which the paper does not compare.

python -m benchmarks.ablations [--corpus DIR] [--out DIR] [--option=value ...]   (more options go to cpc pretrain)

Every variant is configs/ablations/base.yaml with one change. Variants that an earlier call finished are not run again,
and an interrupted variant continues from its last checkpoint.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from cpc.checkpoint import read_checkpoint, read_config
from cpc.data.store.atomic import read_records
from cpc.data.synthetic.speech import synthesize
from cpc.native.allocator import keep_freed_memory
from cpc.native.processor import prepare_processor
from cpc.pretraining.command import parse, run_pretraining
from cpc.probes.report import probe

BASE = Path(__file__).parents[1] / "configs" / "ablations" / "base.yaml"
STEPS = {2: 28.5, 4: 57.6, 8: 63.6, 12: 64.6, 16: 63.8}  # the paper's phone accuracy in percent
STRATEGIES = {
    "mixed": 64.6,
    "same_speaker": 65.5,
    "mixed_excluding": 57.3,
    "same_speaker_excluding": 64.6,
    "sequence_only": 65.2,
}
NORMS = ("affine", "layer", "none")
PROBE_TRAIN_MINUTES = 24.0


def variant_options(num_steps: int = 12, strategy: str = "mixed", norm: str = "affine") -> list[str]:
    sampler = "same_speaker" if strategy.startswith("same_speaker") else "uniform"
    return [
        f"--model.predictor.init_args.num_steps={num_steps}",
        f"--model.encoder.init_args.norm={norm}",
        f"--model.loss.init_args.negatives={strategy}",
        # With same-speaker batches, all strategies but sequence_only have about equal numbers of candidates.
        f"--data.sampler={sampler}",
        # Each variant is measured only with its training strategy.
        "--model.extra_strategies=[]",
    ]


def run(folder: Path, corpus: Path, options: list[str]) -> dict[str, Any]:
    """Pretrain and probe one variant unless an earlier call did, and return its results."""
    keep_options(folder, BASE, options)
    train(folder, ["--config", str(BASE), f"--data.manifest={corpus}", *options])
    if not is_probed(folder):
        probe(
            folder, corpus, ("phones", "speaker"), features=("c", "z"), baselines=(), train_minutes=PROBE_TRAIN_MINUTES
        )
    tasks = json.loads((folder / "probe.json").read_text())["tasks"]
    results = tasks["phones"]["results"]
    records = read_records(folder / "bound.jsonl")
    held_out = [record for record in records if record["split"] == "valid"][-1]
    above_one_nat = [r["step"] for r in records if r["split"] == "train" and np.mean(r["mi_bound_nats"]) > 1]
    return {
        "phones_c": results["cpc"]["accuracy_percent"],
        "interval": results["cpc"]["accuracy_interval_percent"],
        "speaker_c": tasks["speaker"]["results"]["cpc"]["accuracy_percent"],
        "phones_z": results["cpc_z"]["accuracy_percent"],
        "mi_bound_nats": float(np.mean(held_out["mi_bound_nats"])),
        "mi_ceiling_nats": float(np.mean(held_out["mi_ceiling_nats"])),
        "first_nat_step": min(above_one_nat, default=None),
    }


def train(folder: Path, arguments: list[str]) -> None:
    """Pretrain into a folder; continue an interrupted call, and do nothing if an earlier call finished."""
    arguments = [*arguments, f"--run_dir={folder}"]
    if not is_trained(folder, parse(arguments).trainer.max_steps):
        began = any((folder / name).exists() for name in ("bound.jsonl", "checkpoints"))
        run_pretraining([*arguments, *(["--ckpt_path=last"] if began else [])])


def keep_options(folder: Path, config: Path, options: list[str]) -> None:
    """Save the text of the config of a variant, and the options that change it.

    Raises:
        ValueError: if the folder has results of other options, or of a config with other values; comments may differ.
    """
    path, kept = folder / "options.json", [config.read_text(), *options]
    if path.exists():
        earlier = json.loads(path.read_text())
        if earlier[1:] != options or yaml.safe_load(earlier[0]) != yaml.safe_load(kept[0]):
            raise ValueError(f"{folder} was run with other options or another config: name another folder with --out")
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(kept))


def is_trained(folder: Path, max_steps: int) -> bool:
    """Return whether the last checkpoint, which a run writes at the end of a step, is from the last step."""
    checkpoint = folder / "checkpoints" / "last.ckpt"
    return checkpoint.exists() and read_checkpoint(checkpoint)["global_step"] >= max_steps


def is_probed(folder: Path) -> bool:
    """Return whether there is a probe report on the current weights of the folder."""
    report = folder / "probe.json"
    return report.exists() and json.loads(report.read_text())["model"]["sha256"] == read_config(folder)["sha256"]


def table(title: str, rows: dict[Any, dict[str, Any]], paper: dict[Any, float] | None = None) -> str:
    lines = [
        title,
        f"{'':24} {'phones, c':>10} {'95 % interval':>16} {'z':>6} {'speaker, c':>10} {'bound':>7} {'ceiling':>8} "
        f"{'first nat':>9} {'paper':>6}",
    ]
    for name, row in rows.items():
        low, high = row["interval"]
        lines.append(
            f"{name!s:24} {row['phones_c']:9.1f} % {low:7.1f} to {high:5.1f} {row['phones_z']:6.1f} "
            f"{row['speaker_c']:8.1f} % "
            f"{row['mi_bound_nats']:7.2f} {row['mi_ceiling_nats']:8.2f} "
            f"{row['first_nat_step'] or 'never':>9} {paper[name] if paper else '':>6}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=Path("data/synthesised"))
    parser.add_argument("--out", type=Path, default=Path("runs/ablations"))
    arguments, options = parser.parse_known_args()
    keep_freed_memory()
    prepare_processor()
    synthesize(arguments.corpus)

    def variant(name: str, num_steps: int = 12, **change: str) -> dict[str, Any]:
        return run(arguments.out / name, arguments.corpus, [*variant_options(num_steps, **change), *options])

    by_strategy = {strategy: variant(strategy, strategy=strategy) for strategy in STRATEGIES}
    by_steps = {
        num_steps: by_strategy["mixed"] if num_steps == 12 else variant(f"steps_{num_steps:02}", num_steps)
        for num_steps in STEPS
    }
    by_norm = {norm: by_strategy["mixed"] if norm == "affine" else variant(f"norm_{norm}", norm=norm) for norm in NORMS}
    print(table("Steps predicted (mixed)", by_steps, STEPS))
    print(table("Negatives (12 steps)", by_strategy, STRATEGIES))
    print(table("Norm of the encoder (mixed, 12 steps)", by_norm))
    print(json.dumps({"steps": by_steps, "negatives": by_strategy, "norms": by_norm}))


if __name__ == "__main__":
    main()
