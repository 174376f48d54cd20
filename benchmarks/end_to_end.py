"""Windows per second of `cpc pretrain` as a user runs it, beside the bare training step of the same model.

python -m benchmarks.end_to_end [--rounds N]

Both run configs/cpu_small.yaml's model in processes of their own, in turns. The bare step has its batch at hand and
does nothing but forward, backward, clipping and Adam; the command loads, records, shows progress, keeps its state and
trains the config's online probe.
Held-out evaluations and checkpoints are left out of either: how often they come is up to the user.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import yaml

from benchmarks import stopwatch
from benchmarks.machine import gemm_peak_gflops, machine_state
from benchmarks.noise import write_noise
from benchmarks.processes import Variant, alternate
from cpc.config.description import build
from cpc.model import CPC
from cpc.native.allocator import keep_freed_memory
from cpc.native.processor import prepare_processor
from cpc.pretraining.pretrain import pretrain

CONFIG = Path(__file__).parents[1] / "configs" / "cpu_small.yaml"
NUM_WARMUP_STEPS, NUM_STEPS = 20, 120
PRECISIONS: dict[str, tuple[str, Any]] = {
    "float32": ("32-true", "float32"),
    "bf16": ("bf16-mixed", "bf16"),
}  # the trainer's, and the loss's


def real_loop(precision: str) -> float:
    """Mean seconds per step of the command."""
    trainer_precision, compute = PRECISIONS[precision]
    with tempfile.TemporaryDirectory() as folder:
        corpus = write_noise(Path(folder) / "corpus", num_files=80, seconds=10.0)
        config = yaml.safe_load(CONFIG.read_text())
        config["run_dir"] = f"{folder}/run"
        config["eval_every_steps"] = config["checkpoint_every_steps"] = NUM_STEPS
        config["model"]["loss"]["init_args"]["compute"] = compute
        config["data"]["init_args"]["manifest"] = str(corpus)
        config["trainer"] |= {"max_steps": NUM_STEPS, "precision": trainer_precision, "accelerator": "cpu"}
        config["trainer"]["callbacks"].append({"class_path": "benchmarks.stopwatch.Stopwatch"})
        pretrain(config)
    steps = stopwatch.starts[NUM_WARMUP_STEPS:]
    return (steps[-1] - steps[0]) / (len(steps) - 1)


def bare_step(precision: str) -> float:
    """Mean seconds of a step on a batch at hand."""
    config = yaml.safe_load(CONFIG.read_text())
    config["model"]["loss"]["init_args"]["compute"] = PRECISIONS[precision][1]
    model = CPC(*(build(config["model"][part]) for part in ("encoder", "context", "predictor", "loss")))
    x = torch.randn(config["data"]["init_args"]["batch_size"], config["data"]["init_args"]["window_samples"])
    optimiser = torch.optim.Adam(model.parameters(), 1e-4, fused=True)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = model.loss(x).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config["trainer"]["gradient_clip_val"])
        optimiser.step()

    for _ in range(NUM_WARMUP_STEPS):
        step()
    began = time.perf_counter()
    for _ in range(NUM_STEPS - NUM_WARMUP_STEPS):
        step()
    return (time.perf_counter() - began) / (NUM_STEPS - NUM_WARMUP_STEPS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--what", choices=("loop", "step"), help="measure this alone, in this process")
    parser.add_argument("--precision", choices=PRECISIONS, default="float32")
    options = parser.parse_args()
    keep_freed_memory()
    prepare_processor()
    if options.what:
        seconds = real_loop(options.precision) if options.what == "loop" else bare_step(options.precision)
        print(json.dumps({"seconds": seconds, "gemm_peak_gflops": gemm_peak_gflops()}))
        return
    variants = {
        f"{what} {precision}": Variant("benchmarks.end_to_end", ("--what", what, "--precision", precision))
        for precision in PRECISIONS
        for what in ("step", "loop")
    }
    found = alternate(variants, options.rounds)
    figures = {}
    for precision in PRECISIONS:
        step, loop = (found[f"{what} {precision}"] for what in ("step", "loop"))
        fraction = step["seconds"] / loop["seconds"]
        print(
            f"{precision:8} bare step {step['seconds']:.3f} s, cpc pretrain {loop['seconds']:.3f} s per step "
            f"({8 / loop['seconds']:.1f} windows/s): {fraction:.1%} of the bare step's throughput"
        )
        figures["fraction_of_bare_step" + ("" if precision == "float32" else "_bf16")] = round(fraction, 4)
    print(json.dumps(figures | {"machine": machine_state(keep_freed_memory())}))


if __name__ == "__main__":
    main()
