"""Samplers that do not look at the query: time per draw, and how far their counts are off, at a vocabulary of 793,471.

python -m benchmarks.static_samplers [--repetitions R]

One thread, an allocator that keeps freed memory; candidates are shared by 640 queries with a target each. `least` is
the fastest call, for machines that are shared. The bias is that of the estimate of n from distinct log-uniform
candidates, sum_i 1 / count_i, relative, with its standard error: zero where counts are unbiased.
"""

import argparse
import json
import statistics
import time
from typing import get_args

import torch

from benchmarks.machine import machine_state
from cpc.candidates.samplers import Counts, LearnedUnigram, LogUniform, ProposalSampler, Uniform, Unigram
from cpc.native.allocator import keep_freed_memory

NUM_CLASSES, NUM_QUERIES = 793_471, 640
NUM_CLASSES_OF_BIAS, NUM_ROWS = 10_000, 20_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=200)
    repetitions = parser.parse_args().repetitions
    torch.set_num_threads(1)
    is_kept = keep_freed_memory()
    generator = torch.Generator().manual_seed(0)
    zipf = LogUniform(NUM_CLASSES).probabilities()
    targets = torch.multinomial(zipf, NUM_QUERIES, replacement=True, generator=generator)
    samplers: dict[str, ProposalSampler] = {
        "log_uniform": LogUniform(NUM_CLASSES),
        "log_uniform_replacement": LogUniform(NUM_CLASSES, replacement=True),
        "uniform": Uniform(NUM_CLASSES),
        "unigram": Unigram(zipf),
        "learned_unigram": LearnedUnigram(NUM_CLASSES),
    }
    figures: dict[str, float] = {}
    print("ms per draw of m          " + "".join(f"{num:>9}" for num in (100, 1000, 8192)))
    for name, sampler in samplers.items():
        for num in (100, 1000, 8192):
            seconds = []
            for _ in range(repetitions):
                start = time.perf_counter()
                sampler.sample(None, num, targets, generator=generator)
                seconds.append(time.perf_counter() - start)
            figures[f"{name}_{num}_ms"] = round(1000 * statistics.median(seconds), 3)
            figures[f"{name}_{num}_least_ms"] = round(1000 * min(seconds), 3)
        for kind in ("ms", "least_ms"):
            row = (f"{figures[f'{name}_{num}_{kind}']:9.2f}" for num in (100, 1000, 8192))
            print(f"{name if kind == 'ms' else '  least':26}" + "".join(row))

    print(f"bias of the estimated n = {NUM_CLASSES_OF_BIAS}, %, from m candidates")
    for counts in get_args(Counts):
        for num in (3, 10, 100):
            row_sampler = LogUniform(NUM_CLASSES_OF_BIAS, counts=counts, shared=False)
            draw = row_sampler.sample(None, num, torch.zeros(NUM_ROWS, 1, dtype=torch.int64), generator=generator)
            estimates = (-draw.log_count_sampled.double()).exp().sum(1) / NUM_CLASSES_OF_BIAS
            bias, error = float(estimates.mean()) - 1, float(estimates.std()) / NUM_ROWS**0.5
            figures[f"bias_{counts}_{num}"] = round(bias, 5)
            print(f"{counts:12}{num:6}{100 * bias:9.2f} +- {100 * error:.2f}")
    print(json.dumps(figures | {"machine": machine_state(allocator_keeps_memory=is_kept)}))


if __name__ == "__main__":
    main()
