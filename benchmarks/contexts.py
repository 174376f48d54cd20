"""Context networks at equal processor time: GRU, causal convolution, and state space, on ECG waves and activities.

python -m benchmarks.contexts [--ludb FILE] [--hapt FILE] [--out DIR] [--seeds N] [--seconds S] [--only STUDY ...]
                              [--contexts NAME ...] [--split test]

`python datasets/ludb/prepare.py DIR --out data/ludb_250.npz --rate_hz 250` and datasets/hapt/prepare.py write the
sources. The time of a training step of every context is measured in turns, in this process and on one thread, and kept
in OUT/step_seconds.json; each context then trains for the number of steps that takes S seconds. A stack of dilated
causal convolutions is here because it is a rival; it is not part of cpc. Runs that an earlier call finished are not
repeated. Set OMP_NUM_THREADS=1.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from benchmarks.ablations import keep_options, train
from benchmarks.machine import machine_state
from benchmarks.signals import CONFIGS, STUDIES, Study, table
from cpc.contexts import Context
from cpc.contexts.context import State
from cpc.data.batch import Batch
from cpc.model import CPC
from cpc.native.allocator import keep_freed_memory
from cpc.native.processor import prepare_processor
from cpc.pretraining.command import parse
from cpc.probes.report import probe


class CausalConv(Context):
    """Residual causal convolutions x + W relu(conv(norm(x))) with dilations 1, 2, 4, ..., for comparison."""

    def __init__(self, dim: int = 128, num_layers: int = 4, kernel: int = 5) -> None:
        super().__init__()
        self.dim, self.num_layers, self.kernel = dim, num_layers, kernel

    @property
    def receptive_field(self) -> int:
        """Number of latents that a context depends on."""
        return 1 + (self.kernel - 1) * (2**self.num_layers - 1)

    @property
    def state_shapes(self) -> tuple[tuple[int, int], ...]:
        """The last inputs of each convolution."""
        return tuple(((self.kernel - 1) * 2**i, self.dim) for i in range(self.num_layers))

    def _allocate(self, input_dim: int) -> None:
        self.projection = nn.Linear(input_dim, self.dim)
        self.norms = nn.ModuleList(nn.LayerNorm(self.dim) for _ in range(self.num_layers))
        self.convolutions = nn.ModuleList(
            nn.Conv1d(self.dim, self.dim, self.kernel, dilation=2**i) for i in range(self.num_layers)
        )
        self.outputs = nn.ModuleList(nn.Linear(self.dim, self.dim) for _ in range(self.num_layers))

    def _encode(self, z: Tensor, state: State) -> tuple[Tensor, State]:
        x, after = self.projection(z), []
        for i, (norm, convolution, output) in enumerate(zip(self.norms, self.convolutions, self.outputs, strict=True)):
            inputs, num_past = norm(x), (self.kernel - 1) * 2**i
            past = inputs.new_zeros(len(x), num_past, self.dim) if state is None else state[i]
            inputs = torch.cat([past, inputs], 1)
            after.append(inputs[:, inputs.shape[1] - num_past :])
            hidden = rearrange(convolution(rearrange(inputs, "b t c -> b c t")), "b c t -> b t c")
            x = x + output(F.relu(hidden))
        return x, tuple(after)


def context_options(dim: int, memory_latents: int) -> dict[str, dict[str, Any]]:
    """Return the contexts by name, of one width. The slowest channels remember about `memory_latents` latents."""
    return {
        "GRU": {"class_path": "cpc.contexts.GRU", "init_args": {"dim": dim}},
        "causal convolution": {"class_path": "benchmarks.contexts.CausalConv", "init_args": {"dim": dim}},
        "state space": {
            "class_path": "cpc.contexts.StateSpace",
            "init_args": {"dim": dim, "min_step": round(2 / memory_latents, 5)},
        },
        "state space, 2 layers": {
            "class_path": "cpc.contexts.StateSpace",
            "init_args": {"dim": dim, "num_layers": 2, "min_step": round(2 / memory_latents, 5), "max_step": 1.0},
        },
    }


# LUDB at 250 Hz: a latent stands for 16 ms, and a window of 10 s has 625.
ECG = replace(
    STUDIES["ECG waves"],
    options=(
        "--model.encoder.init_args.sample_rate_hz=250",
        "--model.encoder.init_args.kernels=[4,4]",
        "--model.encoder.init_args.strides=[2,2]",
        "--data.window_seconds=10",
    ),
)
# HAPT at 50 Hz: a latent stands for 160 ms, and a window of 164 s has 1024.
LONG_WINDOWS = ("--data.window_seconds=163.84", "--data.batch_size=2", "--model.extra_strategies=[]")
PARTS: dict[str, tuple[Study, int, int]] = {  # study, width, memory in latents
    "ECG waves": (ECG, 128, 625),
    "activities": (replace(STUDIES["activities"], options=LONG_WINDOWS), 256, 512),
    "transitions": (replace(STUDIES["transitions"], options=LONG_WINDOWS), 256, 512),
}


def arguments_of(
    study: Study, context: dict[str, Any], seed: int, num_steps: int, where: argparse.Namespace
) -> list[str]:
    source = getattr(where, study.corpus)
    return [
        f"--config={CONFIGS / study.config}",
        f"--data.source={source}",
        *study.options,
        f"--model.context={json.dumps(context)}",
        f"--seed_everything={seed}",
        f"--data.seed={seed}",
        f"--trainer.max_steps={num_steps}",
        f"--record_every_steps={max(1, num_steps // 10)}",
        f"--eval_every_steps={num_steps}",
        f"--checkpoint_every_steps={num_steps}",
    ]


def step_seconds(study: Study, contexts: dict[str, dict[str, Any]], where: argparse.Namespace) -> dict[str, float]:
    """Return the processor time of a training step with each context, measured in turns: medians of nine."""
    steps = {}
    for name, context in contexts.items():
        settings = parse([*arguments_of(study, context, 0, 1, where), f"--run_dir={where.out / 'unused'}"])
        model, data = settings.model.model, settings.config_init.data
        num_samples = round(data.window_seconds * model.encoder.sample_rate_hz)
        x = torch.randn(data.batch_size, num_samples, model.encoder.channels)
        model.initialise_from(x)
        optimiser = torch.optim.Adam(model.parameters(), fused=True)

        def step(model: CPC = model, x: Tensor = x, optimiser: torch.optim.Optimizer = optimiser) -> float:
            start = time.process_time()
            output = model(x)
            loss = model.contrast(output, Batch.of(x)).loss
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            return time.process_time() - start

        steps[name] = step
    times = [{name: step() for name, step in steps.items()} for _ in range(11)][2:]
    return {name: sorted(each[name] for each in times)[len(times) // 2] for name in steps}


def measure(part: str, name: str, seed: int, num_steps: int, where: argparse.Namespace) -> dict[str, float]:
    """Pretrain and probe one context, or read what an earlier call found."""
    study, dim, memory = PARTS[part]
    context = context_options(dim, memory)[name]
    folder = where.out / f"{study.run_name}_{name.replace(' ', '_').replace(',', '')}_{seed}"
    arguments = arguments_of(study, context, seed, num_steps, where)
    keep_options(folder, CONFIGS / study.config, arguments)
    train(folder, arguments)
    options = dict(study.probe)
    if "test_split" in options:
        options["test_split"] = where.split
    report = folder / f"{part.replace(' ', '_')}_{where.split}.json"
    if not report.exists():
        probe(folder, getattr(where, study.corpus), out=report, trusted_packages=("cpc", "benchmarks"), **options)
    results = json.loads(report.read_text())["tasks"][options["task"]]["results"]
    return {key: result[study.figure] for key, result in results.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ludb", type=Path, default=Path("data/ludb_250.npz"))
    parser.add_argument("--hapt", type=Path, default=Path("data/hapt.npz"))
    parser.add_argument("--out", type=Path, default=Path("runs/contexts"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="STUDY")
    names = list(context_options(1, 1))
    parser.add_argument("--contexts", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--split", default="test", help="split of the ECG's probe; choose on valid")
    where = parser.parse_args()
    keep_freed_memory()
    prepare_processor()
    torch.set_num_threads(1)
    where.out.mkdir(parents=True, exist_ok=True)
    state = machine_state(True)
    print("  ".join(f"{name} {value}" for name, value in state.items()))
    kept = where.out / "step_seconds.json"
    seconds = json.loads(kept.read_text()) if kept.exists() else {}
    found: dict[str, list[dict[str, float]]] = {}
    for part in where.only:
        study, dim, memory = PARTS[part]
        if study.corpus not in seconds:
            seconds[study.corpus] = step_seconds(study, context_options(dim, memory), where)
            kept.write_text(json.dumps(seconds))
        for name in where.contexts:
            step = seconds[study.corpus][name]
            num_steps = round(where.seconds / step)
            label = f"{part}: {name} ({1e3 * step:.0f} ms, {num_steps} steps)"
            found[label] = [measure(part, name, seed, num_steps, where) for seed in range(where.seeds)]
            print(table({label: found[label]}), flush=True)
    print(table(found))
    print(json.dumps(found | {"machine": state}))


if __name__ == "__main__":
    main()
