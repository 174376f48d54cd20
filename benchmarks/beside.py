"""Steps per second of `cpc pretrain` on a quiet machine, with one other busy process, and with three.

python -m benchmarks.beside [--rounds N] [--steps N]

Two configs, on noise: configs/small_speech.yaml and configs/image/small_photos.yaml. Every turn is a separate process,
with the default number of threads of `cpc`, or with one. Turns alternate, and figures are medians over rounds.
`speech_busy` and similar keys are fractions of the quiet speed. A busy process is an endless loop in Python.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks import stopwatch
from benchmarks.machine import machine_state
from benchmarks.noise import write_noise
from benchmarks.processes import Variant
from cpc.cli import main as cpc
from cpc.native.allocator import keep_freed_memory

CONFIGS = Path(__file__).parents[1] / "configs"
NAMES = {"speech": "small_speech.yaml", "image": "image/small_photos.yaml"}
OTHERS = {"quiet": 0, "busy": 1, "three_busy": 3}
NUM_WARMUP_STEPS = 10


def steps_per_second(name: str, num_steps: int) -> float:
    """Train for `num_steps` steps in this process, as the command line does, and return the steps per second."""
    with tempfile.TemporaryDirectory() as folder:
        config = yaml.safe_load((CONFIGS / NAMES[name]).read_text())
        if name == "speech":
            write_noise(Path(folder) / "corpus", num_files=80, seconds=10.0)
            config["data"]["init_args"] |= {"manifest": f"{folder}/corpus", "speakers_per_batch": 2}
        else:
            pixels = np.random.default_rng(0).integers(0, 256, (1000, 112, 112, 3), np.uint8)
            np.savez(f"{folder}/noise.npz", images=pixels, split=["train"] * 900 + ["valid"] * 100)
            config["data"]["init_args"]["source"] = f"{folder}/noise.npz"
        config["eval_every_steps"] = config["checkpoint_every_steps"] = num_steps
        config["trainer"] |= {"max_steps": num_steps, "enable_progress_bar": False}
        config["trainer"]["callbacks"] = [{"class_path": "benchmarks.stopwatch.Stopwatch"}]
        path = Path(folder) / "config.yaml"
        path.write_text(yaml.safe_dump(config))
        cpc(["pretrain", "--config", str(path), "--run_dir", f"{folder}/run"])
    steps = stopwatch.starts[NUM_WARMUP_STEPS:]
    return (len(steps) - 1) / (steps[-1] - steps[0])


@contextmanager
def busy_processes(num_processes: int) -> Iterator[None]:
    """Run `num_processes` busy processes meanwhile."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(num_processes)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--what", choices=NAMES, help="measure only this config, in this process")
    options = parser.parse_args()
    if options.what:
        print(json.dumps({"steps_per_second": steps_per_second(options.what, options.steps)}))
        return
    threads = {"default": os.environ.get("OMP_NUM_THREADS"), "one": "1"}
    found: dict[tuple[str, str, str], list[float]] = {}
    for turn in range(options.rounds):
        for name in NAMES:
            for load, num_processes in OTHERS.items():
                for label, value in threads.items():
                    environment = {} if value is None else {"OMP_NUM_THREADS": value}
                    with busy_processes(num_processes):
                        variant = Variant("benchmarks.beside", ("--what", name, "--steps", str(options.steps)))
                        speed = variant.run(environment)["steps_per_second"]
                    found.setdefault((name, load, label), []).append(speed)
                    print(f"  round {turn + 1}: {name}, {load}, {label}: {speed:.2f}", file=sys.stderr, flush=True)
    medians = {key: sorted(speeds)[len(speeds) // 2] for key, speeds in found.items()}
    figures: dict[str, Any] = {}
    for name in NAMES:
        print(f"\n{name:8} {'default threads':>16} {'one thread':>11}   steps a second")
        quiet = medians[name, "quiet", "default"]
        for load in OTHERS:
            ours, one = (medians[name, load, label] for label in threads)
            print(f"{load:10} {ours:14.2f} {one:11.2f}   {ours / quiet:.0%} of quiet, {ours / one:.0%} of one thread")
            figures[f"{name}_{load}"] = round(ours if load == "quiet" else ours / quiet, 3)
            figures[f"{name}_{load}_of_one_thread"] = round(ours / one, 3)
    print(json.dumps(figures | {"machine": machine_state(keep_freed_memory())}))


if __name__ == "__main__":
    main()
