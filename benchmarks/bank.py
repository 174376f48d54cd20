"""InfoNCE against a bank of a million stored latents: a step with m draws, a step with all, and the exact bound.

python -m benchmarks.bank [--latents N] [--rows M] [--draws m] [--rounds R]

Latents lie in clusters on a sphere, 64 channels, scores q . z / temperature; a query lies near its positive, which is
not in the bank. A step draws, computes the loss and both gradients. The estimates of log N - L stand beside the exact
one: the mean error over rounds and its spread. Steps take turns; seconds are medians over rounds.
"""

import argparse
import json
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from benchmarks.machine import machine_state, median_seconds, peak_extra_mib
from cpc.candidates import LatentBank
from cpc.candidates.samplers import Sampler, TwoLevel, Uniform
from cpc.losses import RowLosses, bank_loss
from cpc.native.allocator import keep_freed_memory

DIM, NUM_CLUSTERS, TEMPERATURE = 64, 1000, 0.1


def scene(num_latents: int, num_rows: int) -> tuple[torch.Tensor, torch.Tensor, LatentBank]:
    """Return queries, positives and the bank."""
    generator = torch.Generator().manual_seed(0)

    def around(centres: torch.Tensor, spread: float) -> torch.Tensor:
        noise = torch.randn(centres.shape, generator=generator) / DIM**0.5
        return F.normalize(centres + spread * noise, dim=1)

    centres = F.normalize(torch.randn(NUM_CLUSTERS, DIM, generator=generator), dim=1)
    latents = around(centres[torch.randint(NUM_CLUSTERS, (num_latents,), generator=generator)], 0.7)
    positives = around(centres[torch.randint(NUM_CLUSTERS, (num_rows,), generator=generator)], 0.7)
    return around(positives, 0.7), positives, LatentBank(latents)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latents", type=int, default=1_000_000)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    keeps_memory = keep_freed_memory()
    queries, positives, bank = scene(options.latents, options.rows)
    no_targets = torch.full((options.rows,), -1)
    generator = torch.Generator().manual_seed(1)
    two_level = TwoLevel(len(bank), DIM, TEMPERATURE)
    start = time.perf_counter()
    two_level.refresh(bank.latents)
    refresh_seconds = time.perf_counter() - start

    def sampled_loss(sampler: Sampler) -> RowLosses:
        draw = sampler.sample(queries, options.draws, no_targets, "keep", generator)
        return bank_loss(queries, positives, bank, draw, temperature=TEMPERATURE)

    def full_loss() -> RowLosses:
        return bank_loss(queries, positives, bank, temperature=TEMPERATURE)

    uniform = Uniform(len(bank), replacement=True)
    losses: dict[str, Callable[[], RowLosses]] = {
        "all": full_loss,
        "two-level": lambda: sampled_loss(two_level),
        "uniform": lambda: sampled_loss(uniform),
    }

    def step(loss: Callable[[], RowLosses]) -> None:
        for each in (queries, positives):
            each.requires_grad_().grad = None
        loss().loss.backward()

    seconds: dict[str, list[float]] = {name: [] for name in losses}
    for _ in range(options.rounds):
        for name, loss in losses.items():
            seconds[name].append(median_seconds(lambda loss=loss: step(loss), 1, num_warmups=1))
    with torch.no_grad():
        bound_seconds = median_seconds(full_loss, max(1, options.rounds // 2), num_warmups=0)
        bound_mib = peak_extra_mib(full_loss)
        exact = full_loss()
        read = {
            name: torch.tensor([losses[name]().mi_nats - exact.mi_nats for _ in range(20)])
            for name in ("two-level", "uniform")
        }
    state = machine_state(keeps_memory)
    print("  ".join(f"{name} {value}" for name, value in state.items()))
    print(f"{len(bank)} latents of {DIM} channels, {options.rows} rows, {options.draws} draws each")
    print(f"k-means blocks of the two-level sampler: {refresh_seconds:.1f} s")
    print(
        f"exact log N - L: {exact.mi_nats:.3f} of {float(exact.num_candidates[0].log()):.3f} nats, "
        f"{bound_seconds:.3f} s, {bound_mib:.0f} MiB extra: {exact.reading}"
    )
    medians = {name: sorted(times)[len(times) // 2] for name, times in seconds.items()}
    for name, median in medians.items():
        error = f"reads {read[name].mean():+.3f} +- {read[name].std():.3f} nats too much" if name in read else ""
        print(f"{name:10} {1e3 * median:10.1f} ms a step  {error}")
    figures = {
        "seconds_all": medians["all"],
        "seconds_two_level": medians["two-level"],
        "seconds_uniform": medians["uniform"],
        "all_over_two_level": medians["all"] / medians["two-level"],
        "bound_seconds": bound_seconds,
        "bound_extra_mib": bound_mib,
        "refresh_seconds": refresh_seconds,
        "excess_nats_two_level": float(read["two-level"].mean()),
        "excess_nats_uniform": float(read["uniform"].mean()),
    }
    print(json.dumps({name: float(f"{value:.4g}") for name, value in figures.items()} | {"machine": state}))


if __name__ == "__main__":
    main()
