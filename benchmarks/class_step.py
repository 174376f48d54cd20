"""A training step on a class table (forward, backward, optimiser): sampled softmax against the full one.

python -m benchmarks.class_step [--classes 793471] [--sampled 8192] [--dim 128] [--queries 256] [--rounds 3]

Candidates are log-uniform, shared by the batch, without replacement, hits removed. Each variant runs once a round, in
a process of its own; figures are medians. `dense` is the trap: few classes are sampled, but the gradient of the whole
table is filled with zeros, and the optimiser goes through all of it.
"""

import argparse
import json
from typing import Any

import torch

from benchmarks.machine import machine_state, median_seconds, peak_extra_mib
from benchmarks.processes import Variant, alternate
from cpc.candidates import ClassTable
from cpc.candidates.samplers import LogUniform
from cpc.losses import ClassTableLoss
from cpc.native.allocator import keep_freed_memory
from cpc.native.processor import prepare_processor

# objective, whether gradients are sparse, optimiser
METHODS: dict[str, tuple[str, bool, type[torch.optim.Optimizer]]] = {
    "full, SGD": ("full_softmax", False, torch.optim.SGD),
    "full, Adam": ("full_softmax", False, torch.optim.Adam),
    "sampled, SGD": ("sampled_softmax", True, torch.optim.SGD),
    "sampled, Adagrad": ("sampled_softmax", True, torch.optim.Adagrad),
    "sampled, SparseAdam": ("sampled_softmax", True, torch.optim.SparseAdam),
    "sampled, dense, SGD": ("sampled_softmax", False, torch.optim.SGD),
    "sampled, dense, Adam": ("sampled_softmax", False, torch.optim.Adam),
}
# variants that are compared: the same optimiser on both sides
RATIOS = {"sgd": ("full, SGD", "sampled, SGD"), "adam": ("full, Adam", "sampled, SparseAdam")}


def measure(method: str, num_classes: int, num_sampled: int, dim: int, num_queries: int) -> dict[str, float]:
    """Measure the seconds of a step and its extra memory, without the optimiser's state, in this process."""
    keep_freed_memory()
    prepare_processor()
    torch.manual_seed(0)
    optimiser_class: Any
    objective, is_sparse, optimiser_class = METHODS[method]
    table = ClassTable(num_classes, dim, has_sparse_gradients=is_sparse)
    drawing = (LogUniform(num_classes), num_sampled) if objective == "sampled_softmax" else ()
    loss = ClassTableLoss(table, objective, *drawing)
    optimiser = optimiser_class(table.parameters(), lr=0.01)
    queries = torch.randn(num_queries, dim)
    zipf = LogUniform(num_classes, replacement=True)
    targets = zipf.sample(None, num_queries, torch.zeros(1, dtype=torch.long)).ids

    def step() -> None:
        optimiser.zero_grad()
        loss.row_losses(queries.requires_grad_(), targets).loss.backward()
        optimiser.step()

    step()  # the optimiser allocates its state
    optimiser.zero_grad()
    extra_mib = peak_extra_mib(step)
    return {"seconds": median_seconds(step, 3 if "full" in method or "dense" in method else 15), "extra_mib": extra_mib}


def compare(
    num_classes: int = 793_471, num_sampled: int = 8192, dim: int = 128, num_queries: int = 256, rounds: int = 3
) -> dict[str, dict[str, float]]:
    """Measure seconds and extra memory of every variant, in separate processes that take turns."""
    sizes = ("--classes", num_classes, "--sampled", num_sampled, "--dim", dim, "--queries", num_queries)
    variants = {method: Variant("benchmarks.class_step", (*map(str, sizes), "--method", method)) for method in METHODS}
    return alternate(variants, rounds)


def full_over_sampled(found: dict[str, dict[str, float]]) -> dict[str, float]:
    """Return how many sampled steps take as long as a full step, by optimiser."""
    return {name: found[full]["seconds"] / found[sampled]["seconds"] for name, (full, sampled) in RATIOS.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, default=793_471)
    parser.add_argument("--sampled", type=int, default=8192)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--queries", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--method", choices=METHODS, help="measure only this variant, in this process")
    options = parser.parse_args()
    sizes = (options.classes, options.sampled, options.dim, options.queries)
    if options.method:
        print(json.dumps(measure(options.method, *sizes)))
        return
    state = machine_state(allocator_keeps_memory=True)
    print("  ".join(f"{name} {value}" for name, value in state.items()))
    print("{} classes, {} candidates, {} dims, {} queries".format(*sizes))
    found = compare(*sizes, rounds=options.rounds)
    for method, result in found.items():
        print(f"{method:22} {result['seconds']:9.4f} s {result['extra_mib']:8.0f} MiB extra")
    ratios = full_over_sampled(found)
    figures = {f"full_over_sampled_{name}": round(ratio, 1) for name, ratio in ratios.items()}
    figures |= {f"seconds_{method}": round(result["seconds"], 4) for method, result in found.items()}
    print(json.dumps(figures | {"machine": state}))


if __name__ == "__main__":
    main()
