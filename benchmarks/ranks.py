"""Ranks on this machine: throughput, bytes sent, and the loss's memory, by how latents are exchanged (Gloo).

python -m benchmarks.ranks [--most 4] [--steps 20] [--negatives mixed] [--num_negatives R]

Step: 256 latents, GRU of 256, 12 bilinear steps, 8 windows of 20480 samples per rank, all candidates of all ranks, Adam
under DDP, one thread per rank. Its throughput is compared with as many processes that train alone at the same time.
These score fewer candidates by it. The arithmetic is equal with `--num_negatives 128`, drawn among the latents of all
ranks, and with `--negatives sequence_only`, where latents stay on their ranks.
Bytes are what the loopback device carries in a step, beside the formula of docs/scale.md; memory is what the loss of
16384 rows per rank takes above its inputs, at its highest.
"""

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.machine import machine_state, peak_extra_mib
from cpc.allocator import keep_freed_memory
from cpc.candidates import STRATEGIES
from cpc.contexts import GRU
from cpc.data.batch import Batch
from cpc.encoders import AudioEncoder
from cpc.losses import Contrastive
from cpc.losses.contrastive import EXCHANGES
from cpc.model import CPC
from cpc.predictors import Bilinear, Output
from cpc.processor import prepare_processor

BATCH_SIZE, WINDOW_SAMPLES, DIM, NUM_STEPS, NUM_LATENTS = 8, 20480, 256, 12, 128
LOSS_SEQUENCES, LOSS_LATENTS, NUM_WARMUPS = 64, 256, 3


def bytes_of_step(num_ranks: int, exchange: str | None, num_parameters: int) -> int:
    """What all ranks together send in a training step over Gloo, by docs/scale.md; float32, identities left out."""
    latents = 4 * BATCH_SIZE * NUM_LATENTS * DIM
    others = num_ranks - 1
    gradients = 2 * 4 * num_parameters * others  # of DDP, in a ring
    of_exchange = {None: 0, "gather": 3 * others, "ring": 2 * others + num_ranks}[exchange]
    return gradients + num_ranks * of_exchange * latents


def train(rank: int, num_ranks: int, exchange: Any, num_steps: int, negatives: Any) -> dict[str, float]:
    torch.manual_seed(rank)
    loss = Contrastive(*negatives, exchange=exchange)
    model = CPC(AudioEncoder(DIM), GRU(DIM), Bilinear(NUM_STEPS), loss)
    x = torch.randn(BATCH_SIZE, WINDOW_SAMPLES)
    model.initialise_from(x)
    wrapped = DistributedDataParallel(model) if dist.is_initialized() else model
    optimiser, batch = torch.optim.Adam(model.parameters(), 2e-4, fused=True), Batch.of(x)
    generator = torch.Generator().manual_seed(0)
    for step in range(NUM_WARMUPS + num_steps):
        if step == NUM_WARMUPS:
            sent, start = _bytes_sent(), time.perf_counter()
        optimiser.zero_grad()
        model.contrast(wrapped(x), batch, generator).loss.backward()
        optimiser.step()
    seconds = (time.perf_counter() - start) / num_steps
    num_parameters = sum(each.numel() for each in model.parameters())
    exchanged = None if num_ranks == 1 or loss.negatives == "sequence_only" else exchange
    return {
        "windows_per_second": BATCH_SIZE / seconds,
        "mb_sent": (_bytes_sent() - sent) / num_steps / 1e6,
        "mb_formula": bytes_of_step(num_ranks, exchanged, num_parameters) / 1e6,
    }


def loss_memory(rank: int, num_ranks: int, exchange: str) -> dict[str, float]:
    torch.manual_seed(rank)
    latents = torch.randn(LOSS_SEQUENCES, LOSS_LATENTS, DIM, requires_grad=True)
    queries = torch.randn(1, LOSS_SEQUENCES, LOSS_LATENTS, DIM, requires_grad=True)
    loss, batch = Contrastive(exchange=exchange), Batch.of(latents)  # type: ignore[arg-type]

    def call() -> None:
        torch.autograd.grad(loss(Output(latents, latents, {"": queries}, None), batch).loss, [latents, queries])

    return {"extra_mib": peak_extra_mib(call)}


def _on_rank(rank: int, num_ranks: int, work: Any, is_group: bool, folder: str) -> None:
    torch.set_num_threads(1)
    prepare_processor()
    if work.func is not loss_memory:
        keep_freed_memory()
    if is_group:
        dist.init_process_group("gloo", init_method=f"file://{folder}/met", rank=rank, world_size=num_ranks)
    found = work(rank, num_ranks)
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    if is_group:
        dist.destroy_process_group()


def together(num_ranks: int, work: Any, is_group: bool) -> list[dict[str, float]]:
    """What each of so many processes measures, in a group or each for itself."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=_on_rank, args=(rank, num_ranks, work, is_group, folder))
            for rank in range(num_ranks)
        ]
        for each in ranks:
            each.start()
        for each in ranks:
            each.join()
        if any(each.exitcode for each in ranks):
            raise RuntimeError(f"exit codes of {num_ranks} ranks: {[each.exitcode for each in ranks]}")
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(num_ranks)]


def _bytes_sent() -> int:
    """By the loopback device since the machine started (Linux)."""
    (line,) = (each for each in Path("/proc/net/dev").read_text().splitlines() if each.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[8])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=4, help="ranks")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--negatives", choices=STRATEGIES, default="mixed")
    parser.add_argument("--num_negatives", type=int, help="drawn for each row; all if not given")
    options = parser.parse_args()
    step = partial(train, num_steps=options.steps, negatives=(options.negatives, options.num_negatives))
    print("  ".join(f"{name} {value}" for name, value in machine_state(keep_freed_memory()).items()))
    figures: list[dict[str, Any]] = []
    for num_ranks in range(1, options.most + 1):
        alone = together(num_ranks, partial(step, exchange="gather"), is_group=False)
        summed = sum(each["windows_per_second"] for each in alone)
        for exchange in EXCHANGES if options.num_negatives is None else ("gather",):  # a ring draws none
            found = together(num_ranks, partial(step, exchange=exchange), num_ranks > 1)
            memory = together(num_ranks, partial(loss_memory, exchange=exchange), num_ranks > 1)
            rate = sum(each["windows_per_second"] for each in found)
            figures.append(
                {
                    "ranks": num_ranks,
                    "exchange": exchange,
                    "windows_per_second": rate,
                    "share_of_processes_alone": rate / summed,
                    "mb_sent_per_step": found[0]["mb_sent"],
                    "mb_by_formula": found[0]["mb_formula"],
                    "loss_extra_mib_per_rank": max(each["extra_mib"] for each in memory),
                }
            )
            print("  ".join(f"{name} {_short(value)}" for name, value in figures[-1].items()), flush=True)
    print(json.dumps({"cores": os.cpu_count(), "of": figures}))


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
