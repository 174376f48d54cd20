"""Ranks on this machine: throughput, bytes sent, and the loss's memory (Gloo).

python -m benchmarks.ranks [--most 4] [--rounds 10] [--steps 6] [--negatives mixed] [--num_negatives R]

Step: 256 latents, GRU of 256, 12 bilinear steps, 8 windows of 20480 samples per rank, all candidates of all ranks, Adam
under DDP, one thread per rank. Throughput is compared with the same number of independent processes, which take turns
with the ranks; figures are medians over turns. Independent processes score fewer candidates per row. The arithmetic is
equal with `--num_negatives 128`, sampled from the latents of all ranks, and with `--negatives sequence_only`, where no
latents are exchanged.
Bytes are what the loopback device carries in a step, compared with the formula of docs/scale.md; memory is the peak
above its inputs of the loss of 16384 rows per rank.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.machine import machine_state, peak_extra_mib
from cpc.candidates import STRATEGIES
from cpc.contexts import GRU
from cpc.data.batch import Batch
from cpc.encoders import AudioEncoder
from cpc.losses import Contrastive
from cpc.model import CPC
from cpc.native.allocator import keep_freed_memory
from cpc.native.processor import prepare_processor
from cpc.predictors import Bilinear, Output

BATCH_SIZE, WINDOW_SAMPLES, DIM, NUM_STEPS, NUM_LATENTS = 8, 20480, 256, 12, 128
LOSS_SEQUENCES, LOSS_LATENTS = 64, 256


def step_bytes(num_ranks: int, sends_latents: bool, num_parameters: int) -> int:
    """Return the bytes that all ranks send in a training step over Gloo (docs/scale.md), in float32, without ids."""
    latents = 4 * BATCH_SIZE * NUM_LATENTS * DIM
    others = num_ranks - 1
    gradients = 2 * 4 * num_parameters * others  # DDP's ring all-reduce
    return gradients + sends_latents * num_ranks * 2 * others * latents


class Training:
    """A model and its training step on one rank, or in an independent process."""

    def __init__(self, rank: int, negatives: Any) -> None:
        torch.manual_seed(rank)
        self.loss = Contrastive(*negatives)
        self.model = CPC(AudioEncoder(DIM), GRU(DIM), Bilinear(NUM_STEPS), self.loss)
        self.x = torch.randn(BATCH_SIZE, WINDOW_SAMPLES)
        self.model.initialise_from(self.x)
        self.wrapped = DistributedDataParallel(self.model) if dist.is_initialized() else self.model
        self.optimiser = torch.optim.Adam(self.model.parameters(), 2e-4, fused=True)
        self.generator = torch.Generator().manual_seed(0)

    def step(self) -> None:
        """Run forward, backward and Adam."""
        self.optimiser.zero_grad()
        self.model.contrast(self.wrapped(self.x), Batch.of(self.x), self.generator).loss.backward()
        self.optimiser.step()


def train(rank: int, num_ranks: int, num_steps: int, negatives: Any, turns: Iterator[None]) -> dict[str, float]:
    """Measure training; in each turn, one step warms up and `num_steps` steps are measured."""
    training = Training(rank, negatives)
    seconds, sent = [], []
    for _ in turns:
        training.step()
        before, start = _bytes_sent(), time.perf_counter()
        for _ in range(num_steps):
            training.step()
        seconds.append((time.perf_counter() - start) / num_steps)
        sent.append((_bytes_sent() - before) / num_steps / 1e6)
    num_parameters = sum(parameter.numel() for parameter in training.model.parameters())
    sends_latents = dist.is_initialized() and training.loss.negatives != "sequence_only"
    return {
        "windows_per_second": BATCH_SIZE / statistics.median(seconds),
        "mb_sent": statistics.median(sent),
        "mb_formula": step_bytes(num_ranks, sends_latents, num_parameters) / 1e6,
    }


def loss_memory(rank: int, num_ranks: int, turns: Iterator[None]) -> dict[str, float]:
    torch.manual_seed(rank)
    latents = torch.randn(LOSS_SEQUENCES, LOSS_LATENTS, DIM, requires_grad=True)
    queries = torch.randn(1, LOSS_SEQUENCES, LOSS_LATENTS, DIM, requires_grad=True)
    loss, output = Contrastive(), Output(latents, latents, {"": queries}, None)

    def call() -> None:
        torch.autograd.grad(loss(output, loss.sequences(output)).loss, [latents, queries])

    (extra_mib,) = (peak_extra_mib(call) for _ in turns)
    return {"extra_mib": extra_mib}


def _run_rank(rank: int, num_ranks: int, task: Any, is_group: bool, folder: Path, turns: Iterator[None]) -> None:
    torch.set_num_threads(1)
    prepare_processor()
    if task.func is train:
        keep_freed_memory()
    if is_group:
        dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=num_ranks)
    figures = task(rank, num_ranks, turns=turns)
    (folder / f"{rank}.json").write_text(json.dumps(figures))
    if is_group:
        dist.destroy_process_group()


class Turns:
    """The turns of one of `num` tasks, which run one at a time, `num_rounds` times each."""

    def __init__(self, barrier: Any, index: int, num: int, num_rounds: int) -> None:
        self.barrier, self.index, self.num, self.num_rounds = barrier, index, num, num_rounds

    def __iter__(self) -> Iterator[None]:
        for turn in range(self.num * self.num_rounds):
            self.barrier.wait(timeout=600)
            if turn % self.num == self.index:
                yield
        self.barrier.wait(timeout=600)


def run_in_turns(num_ranks: int, tasks: list[tuple[Any, bool]], num_rounds: int) -> list[list[dict[str, float]]]:
    """Run each task in `num_ranks` processes, in turns, and return their figures; True: the processes form a group."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(num_ranks * len(tasks))
    with tempfile.TemporaryDirectory() as folder:
        processes, folders = [], [Path(folder, str(index)) for index in range(len(tasks))]
        for index, (task, is_group) in enumerate(tasks):
            folders[index].mkdir()
            turns = Turns(barrier, index, len(tasks), num_rounds)
            for rank in range(num_ranks):
                arguments = (rank, num_ranks, task, is_group and num_ranks > 1, folders[index], turns)
                processes.append(context.Process(target=_run_rank, args=arguments))
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            raise RuntimeError(f"exit codes of {num_ranks} ranks: {[process.exitcode for process in processes]}")
        return [[json.loads((path / f"{rank}.json").read_text()) for rank in range(num_ranks)] for path in folders]


def _bytes_sent() -> int:
    """Return the bytes that the loopback device has sent since the machine started (Linux)."""
    (line,) = (line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[8])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=4, help="largest number of ranks")
    parser.add_argument("--steps", type=int, default=6, help="steps in a turn")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--negatives", choices=STRATEGIES, default="mixed")
    parser.add_argument("--num_negatives", type=int, help="negatives sampled for each row; all if not given")
    options = parser.parse_args()
    step = partial(train, num_steps=options.steps, negatives=(options.negatives, options.num_negatives))
    print("  ".join(f"{name} {value}" for name, value in machine_state(keep_freed_memory()).items()))
    figures: list[dict[str, Any]] = []
    for num_ranks in range(1, options.most + 1):
        independent, group = run_in_turns(num_ranks, [(step, False), (step, True)], options.rounds)
        (memory,) = run_in_turns(num_ranks, [(partial(loss_memory), True)], 1)
        independent_rate, rate = (sum(rank["windows_per_second"] for rank in each) for each in (independent, group))
        figures.append(
            {
                "ranks": num_ranks,
                "windows_per_second": rate,
                "share_of_processes_alone": rate / independent_rate,
                "mb_sent_per_step": group[0]["mb_sent"],
                "mb_by_formula": group[0]["mb_formula"],
                "loss_extra_mib_per_rank": max(rank["extra_mib"] for rank in memory),
            }
        )
        print("  ".join(f"{name} {_short(value)}" for name, value in figures[-1].items()), flush=True)
    print(json.dumps({"cores": os.cpu_count(), "of": figures}))


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
