"""Table 2 of van den Oord et al. 2018, rerun on the synthesised corpus: steps predicted, and the negatives' strategy.

python -m benchmarks.ablations [--corpus DIR] [--out DIR] [--option=value ...]   (more options go to cpc pretrain)

Every variant is configs/ablations/base.yaml with one change; one whose folder holds a probe.json is not run again.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from cpc.allocator import keep_freed_memory
from cpc.bounds import Bound
from cpc.data.synthesis import synthesize
from cpc.pretraining.command import pretrain
from cpc.pretraining.run_folder import read_records
from cpc.probes.linear import ProbeProtocol
from cpc.probes.report import probe_report

BASE = Path(__file__).parents[1] / "configs" / "ablations" / "base.yaml"
STEPS = {2: 28.5, 4: 57.6, 8: 63.6, 12: 64.6, 16: 63.8}  # the paper's phone accuracy in percent
STRATEGIES = {
    "mixed": 64.6,
    "same_speaker": 65.5,
    "mixed_excluding": 57.3,
    "same_speaker_excluding": 64.6,
    "sequence_only": 65.2,
}
PROBE_TRAIN_MINUTES = 24.0


def options_of(num_steps: int, strategy: str) -> list[str]:
    sampler = "same_speaker" if strategy.startswith("same_speaker") else "uniform"
    return [
        f"--model.predictor.init_args.num_steps={num_steps}",
        f"--model.negatives={strategy}",
        # With same-speaker batches every strategy but sequence_only meets about as many candidates.
        f"--data.sampler={sampler}",
        # Uniform batches could not serve a same-speaker strategy, so each is evaluated with its own alone.
        "--model.extra_strategies=[]",
    ]


def run(folder: Path, corpus: Path, options: list[str]) -> dict[str, Any]:
    """Pretrain and probe one variant, or read what an earlier call found."""
    if not (folder / "probe.json").exists():
        pretrain(["--config", str(BASE), f"--run_dir={folder}", f"--data.manifest={corpus}", *options])
        probe_report(
            folder,
            corpus,
            "phones",
            features=("c", "z"),
            baselines=(),
            train_minutes=PROBE_TRAIN_MINUTES,
            protocol=ProbeProtocol(num_seeds=1),
            out=folder / "probe.json",
        )
    results = json.loads((folder / "probe.json").read_text())["tasks"]["phones"]["results"]
    held_out = [record for record in read_records(folder / "bound.jsonl") if record["split"] == "valid"][-1]
    bound = Bound(**{name: value for name, value in held_out.items() if name not in ("schema", "step")})
    return {
        "phones_c": results["cpc"]["accuracy_percent"],
        "interval": results["cpc"]["accuracy_interval_percent"],
        "phones_z": results["cpc_z"]["accuracy_percent"],
        "mi_bound_nats": bound.mean("mi_bound_nats"),
        "mi_ceiling_nats": bound.mean("mi_ceiling_nats"),
    }


def table(title: str, rows: dict[Any, dict[str, Any]], paper: dict[Any, float]) -> str:
    lines = [
        title,
        f"{'':24} {'phones, c':>10} {'95 % interval':>16} {'z':>6} {'bound':>7} {'ceiling':>8} {'paper':>6}",
    ]
    for name, row in rows.items():
        low, high = row["interval"]
        lines.append(
            f"{name!s:24} {row['phones_c']:9.1f} % {low:7.1f} to {high:5.1f} {row['phones_z']:6.1f} "
            f"{row['mi_bound_nats']:7.2f} {row['mi_ceiling_nats']:8.2f} {paper[name]:6.1f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=Path("data/synthesised"))
    parser.add_argument("--out", type=Path, default=Path("runs/ablations"))
    arguments, options = parser.parse_known_args()
    keep_freed_memory()
    synthesize(arguments.corpus)
    by_strategy = {
        strategy: run(arguments.out / strategy, arguments.corpus, [*options_of(12, strategy), *options])
        for strategy in STRATEGIES
    }
    by_steps = {
        num_steps: by_strategy["mixed"]
        if num_steps == 12
        else run(arguments.out / f"steps_{num_steps:02}", arguments.corpus, [*options_of(num_steps, "mixed"), *options])
        for num_steps in STEPS
    }
    print(table("Steps predicted (mixed)", by_steps, STEPS))
    print(table("Negatives (12 steps)", by_strategy, STRATEGIES))
    print(json.dumps({"steps": by_steps, "negatives": by_strategy}))


if __name__ == "__main__":
    main()
